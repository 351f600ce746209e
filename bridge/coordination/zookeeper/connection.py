"""A ZooKeeper session with deadlines: every call ends within the address's ``timeout_s``, and its
error states whether the outcome is known.

kazoo keeps the connection and its session in threads of its own: it reconnects to any of the
servers, and begins a new session when the servers say that the old one has expired. It is not left
to wait: a call is sent only when there is a connection. A queued one would be done when nobody
expects it any more.

    no connection               waits for one until ``timeout_s`` after it was lost; from then on
                                calls fail at once: Unavailable, nothing was sent
    connection lost, or no answer in time       a read: Unavailable; a change: OutcomeUnknown. A
                                                connection without an answer is broken off: another
                        server of the ensemble may be well
    the server refuses          TransactionRefused with the operation that failed (nothing was
                                written), or Refused where the ACL does not allow it
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState, ZnodeStat

from cellfeed.bridge.coordination.zookeeper.client import (
    Check,
    Create,
    Delete,
    Operation,
    OtherConnection,
    Set,
    TransactionRefused,
    ZooKeeperClient,
)
from cellfeed.bridge.coordination.zookeeper.kazoo_client import new_client, watch_connecting
from cellfeed.bridge.coordination.zookeeper.url import ZooKeeperAddress
from cellfeed.store.errors import CellfeedError, OutcomeUnknown, Refused, Unavailable
from cellfeed.store.failpoints import marked

_CLOSE_S: Final = 5.0
"""How long closing may take."""


class Connection(ZooKeeperClient):
    """One session, begun at once in the background. May be used by any number of threads."""

    def __init__(self, address: ZooKeeperAddress, session_timeout_s: float) -> None:
        self._address = address
        self._connected = threading.Event()
        self._lost_at_s = time.monotonic()
        self._connections_made = 0
        self.session_timeout_s = session_timeout_s
        self._client = new_client(address, session_timeout_s)
        watch_connecting(self._client, self._granted)
        self._client.add_listener(self._changed)
        self._client.start_async()

    @property
    def session_id(self) -> int:
        client_id = self._client.client_id
        return int(client_id[0]) if client_id else 0

    @property
    def connections_made(self) -> int:
        return self._connections_made

    @property
    def hosts(self) -> str:
        return self._address.hosts

    def close(self) -> None:
        closing = threading.Thread(target=self._close, name="zookeeper-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)

    # --- reads ------------------------------------------------------------------------------------

    def get_many(
        self, paths: Sequence[str], *, newest: bool = False
    ) -> list[tuple[bytes, ZnodeStat] | None]:
        return self._many(lambda client, path: client.get_async(path), paths, newest)

    def stats(self, paths: Sequence[str], *, newest: bool = False) -> list[ZnodeStat | None]:
        return self._many(lambda client, path: client.exists_async(path), paths, newest)

    def children_of(self, paths: Sequence[str], *, newest: bool = False) -> list[list[str]]:
        return [
            found or []
            for found in self._many(
                lambda client, path: client.get_children_async(path), paths, newest
            )
        ]

    # --- changes ----------------------------------------------------------------------------------

    @marked("cas.zookeeper")
    def commit(
        self, operations: Sequence[Operation], *, connection: int | None = None
    ) -> list[Any]:
        client, number = self._ready()
        if connection not in (None, number):
            raise OtherConnection
        transaction = client.transaction()
        for each in operations:
            match each:
                case Check(path, version):
                    transaction.check(path, version)
                case Create(path, value, ephemeral, sequence):
                    transaction.create(path, value, ephemeral=ephemeral, sequence=sequence)
                case Set(path, value, version):
                    transaction.set_data(path, value, version)
                case Delete(path, version):
                    transaction.delete(path, version)
        results: list[Any] = self._answer(transaction.commit_async(), number, changes=True)
        for operation, result in zip(operations, results, strict=True):
            if isinstance(result, Exception) and not isinstance(
                result, RolledBackError | RuntimeInconsistency
            ):
                if isinstance(result, NoAuthError | InvalidACLError):
                    raise self._forbidden(operation.path)
                raise TransactionRefused(operation, result)
        return results

    # --- waiting ----------------------------------------------------------------------------------

    def _many(
        self, call: Callable[[KazooClient, str], Any], paths: Sequence[str], newest: bool
    ) -> list[Any]:
        client, number = self._ready()
        synced = client.sync_async(paths[0]) if newest and paths else None
        pending = [
            call(client, path) for path in paths
        ]  # answers come in the order of the calls, after the sync
        if synced is not None:
            self._answer(synced, number, changes=False, missing_is_none=True)
        found = []
        for path, each in zip(paths, pending, strict=True):
            try:
                found.append(self._answer(each, number, changes=False, missing_is_none=True))
            except (NoAuthError, InvalidACLError):
                raise self._forbidden(path) from None
        return found

    def _ready(self) -> tuple[KazooClient, int]:
        """The client, when it has a connection, and the number of that."""
        if not self._connected.is_set():
            left_s = self._lost_at_s + self._address.timeout_s - time.monotonic()
            if left_s <= 0 or not self._connected.wait(left_s):
                raise Unavailable(f"ZooKeeper at {self.hosts} cannot be reached")
        return self._client, self._connections_made

    def _answer(
        self, pending: Any, number: int, *, changes: bool, missing_is_none: bool = False
    ) -> Any:
        try:
            answer = pending.get(block=True, timeout=self._address.timeout_s)
        except NoNodeError:
            if missing_is_none:
                return None
            raise
        except (NoAuthError, InvalidACLError):
            raise
        except KazooTimeoutError:
            self._break_off(number)
            raise self._no_answer(
                f"did not answer within {self._address.timeout_s:g} s", changes
            ) from None
        except AuthFailedError:
            raise Refused(f"ZooKeeper at {self.hosts} refused the credentials") from None
        except KazooException as error:
            raise self._no_answer(
                f"was lost during a call ({type(error).__name__})", changes
            ) from None
        return answer

    def _no_answer(self, what: str, changes: bool) -> CellfeedError:
        if changes:
            return OutcomeUnknown(
                f"ZooKeeper at {self.hosts} {what}: the change may or may not have happened"
            )
        return Unavailable(f"ZooKeeper at {self.hosts} {what}")

    def _forbidden(self, path: str) -> Refused:
        return Refused(
            f"ZooKeeper at {self.hosts} does not allow"
            f" {self._address.user or 'anybody without credentials'} to use {path}"
        )

    def _break_off(self, number: int) -> None:
        """Ends a connection that is open and dead. kazoo would not: it takes its own requests for
        signs of life, so while there are calls it notices nothing and stays with a server that
        hangs."""
        connection = self._client._connection._socket  # noqa: SLF001
        if connection is not None and number == self._connections_made and self._connected.is_set():
            with suppress(OSError):
                socket.socket.shutdown(
                    connection, socket.SHUT_RDWR
                )  # also of a TLS socket; kazoo's thread finds it ended, and connects again

    def _changed(self, state: str) -> None:
        """Called by kazoo's thread."""
        if state == KazooState.CONNECTED:
            self._connections_made += 1
            self._connected.set()
        elif self._connected.is_set():
            self._lost_at_s = time.monotonic()
            self._connected.clear()

    def _granted(self, session_timeout_s: float) -> None:
        self.session_timeout_s = session_timeout_s

    def _close(self) -> None:
        self._client.stop()
        self._client.close()
