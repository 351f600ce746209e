"""A client of kazoo with our limits of time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.retry import KazooRetry
from kazoo.security import make_digest_acl

from cellfeed.bridge.coordination.zookeeper.url import ZooKeeperAddress

_quiet = logging.getLogger("cellfeed.zookeeper")
_quiet.setLevel(
    logging.WARNING
)  # fixed, also where the root logs more: at debug level kazoo writes credentials out

_RECONNECT_DELAY_MAX_S: Final = 1.0
_RECONNECTS_IN_A_SESSION: Final = 6
"""The pauses between tries to connect: of a second, and of a sixth of the session at most (kazoo
makes them up to 1.4 times as long). That is how much later than ZooKeeper itself we are back. When
it was away, a session lasts for its time-out from the moment at which it is there again: a process
that paused for most of that would find it expired."""

_FAILURES_UNTIL_FORGOTTEN: Final = 5
"""Failed tries to connect, one after the other, after which any server is welcome, see
:func:`watch_connecting`: more than an ensemble usually has servers."""


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Waits for a TCP connection no longer than kazoo waits for the first answer on it: its share
    of the session. Where a host is gone without a word, kazoo would wait for the whole session,
    which is over then."""

    def __init__(self, connect_timeout_s: float) -> None:
        super().__init__()
        self._connect_timeout_s = connect_timeout_s

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["timeout"] = min(kwargs["timeout"], self._connect_timeout_s)
        return super().create_connection(*args, **kwargs)


def new_client(address: ZooKeeperAddress, session_timeout_s: float) -> KazooClient:
    """A client that was not started yet."""
    credentials = f"{address.user}:{address.password}" if address.user is not None else None
    return KazooClient(
        hosts=address.hosts,
        timeout=session_timeout_s,
        handler=_Handler(session_timeout_s / (address.hosts.count(",") + 1)),
        auth_data=[("digest", credentials)] if credentials else None,
        default_acl=(
            [make_digest_acl(address.user, address.password, all=True)] if credentials else None
        ),
        connection_retry=KazooRetry(
            max_tries=-1,
            delay=0.05,
            max_delay=min(_RECONNECT_DELAY_MAX_S, session_timeout_s / _RECONNECTS_IN_A_SESSION),
        ),
        command_retry=KazooRetry(max_tries=0),
        logger=_quiet,
        use_ssl=address.tls,
        ca=address.ca,
        certfile=address.certificate,
        keyfile=address.key,
        verify_certs=True,
        check_hostname=address.tls,
    )


def watch_connecting(client: KazooClient, granted: Callable[[float], None]) -> None:
    """Calls ``granted`` with the session's time-out that a server grants, in seconds, and lets the
    client forget the last transaction that it has seen. kazoo keeps both to itself: it reads for
    two thirds of the time-out.

    A server turns away a client that has seen a later transaction than the server has, for ever
    if the server came back empty. Reads that have to be new ask for it themselves, and changes
    name the versions that they expect. So the client can forget that transaction; the server
    then reports that its session is gone.
    """
    handler = client._connection  # noqa: SLF001
    connect = handler._connect  # noqa: SLF001
    failures = 0

    def watched(*arguments: Any) -> tuple[float, float]:
        nonlocal failures
        try:
            read_timeout_ms, connect_timeout_ms = connect(*arguments)
        except Exception:
            failures += 1
            if failures >= _FAILURES_UNTIL_FORGOTTEN:
                client.last_zxid = 0
            raise
        failures = 0
        granted(read_timeout_ms * 1.5 / 1000)
        return read_timeout_ms, connect_timeout_ms

    handler._connect = watched  # noqa: SLF001
