"""A ZooKeeper in memory: znodes, versions, sessions and transactions, so that coordination in
ZooKeeper runs as it does in production, without a server.

It has only the calls that coordination uses: no watches, no ACLs. The contract suite of
coordination runs over it as over a real server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kazoo.protocol.states import ZnodeStat

from cellfeed.bridge.coordination.zookeeper.client import (
    Operation,
    OtherConnection,
    TransactionRefused,
    ZooKeeperClient,
)
from cellfeed.store.errors import Unavailable
from cellfeed.store.failpoints import marked
from cellfeed.testing.tree_sessions import TreeSessions
from cellfeed.testing.znodes import REFUSALS, Znode, apply, children, stat


@dataclass(frozen=True)
class TreeCopy:
    """A data directory, as it was."""

    zxid: int
    znodes: dict[str, Znode]
    sessions: TreeSessions


@dataclass
class ZooKeeperTree:
    """The server. Any number of threads may use it."""

    refused: int = 0
    """Calls that found it away."""
    starts: int = 0
    """How often it came up: each time, clients connect again."""
    _away: bool = False
    _zxid: int = 0
    _znodes: dict[str, Znode] = field(default_factory=dict)
    _sessions: TreeSessions = field(default_factory=TreeSessions)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.wipe()

    def begin(self, timeout_s: float, before_call: Callable[[], None] = lambda: None) -> TreeClient:
        """A session. ``before_call`` is called before each of its calls, and may wait or raise."""
        with self._lock:
            return TreeClient(self, self._sessions.begin(timeout_s), timeout_s, before_call)

    def go_away(self) -> None:
        """From now on every call fails at once, with Unavailable."""
        with self._lock:
            self._away = True

    def come_back(self) -> None:
        """As after a restart: sessions are as they were, and each has the whole of its time-out
        again."""
        with self._lock:
            self._away = False
            self.starts += 1
            self._sessions.restart()

    def wipe(self) -> None:
        """It starts again empty: no znode and no session of before."""
        with self._lock:
            now_ms = time.time_ns() // 1_000_000
            self._znodes = {"/": Znode(b"", 0, 0, now_ms, now_ms)}
            self._sessions.end_all()
            self.starts += 1

    def copy(self) -> TreeCopy:
        """The content of its disk: znodes and sessions."""
        with self._lock:
            return TreeCopy(self._zxid, dict(self._znodes), self._sessions.copy())

    def go_back(self, copy: TreeCopy) -> None:
        """It starts again with an earlier disk: znodes, transaction numbers and sessions are those
        of then."""
        with self._lock:
            self._zxid, self._znodes = copy.zxid, dict(copy.znodes)
            self._sessions = copy.sessions.copy()
            self.starts += 1

    def silence(self, session: int, *, since_s: float | None) -> None:
        """The session's process is not heard of from then on (monotonic seconds), or is heard of
        again (None)."""
        with self._lock:
            self._sessions.silence(session, since_s)

    def expire(self, session: int) -> None:
        """The session has ended; its ephemeral znodes go."""
        with self._lock:
            if not self._sessions.end(session):
                return
            for path in [path for path, znode in self._znodes.items() if znode.owner == session]:
                del self._znodes[path]

    # --- calls of clients -------------------------------------------------------------------------

    def read(self, session: int, what: Callable[[], list[Any]]) -> list[Any]:
        with self._lock:
            self._reach(session)
            return what()

    def find(self, path: str) -> tuple[bytes, ZnodeStat] | None:
        znode = self._znodes.get(path)
        return (znode.value, stat(self._znodes, path)) if znode else None

    def names_below(self, path: str) -> list[str]:
        return children(self._znodes, path)

    def commit(
        self, session: int, operations: Sequence[Operation], start: int | None = None
    ) -> list[Any]:
        with self._lock:
            self._reach(session)
            if start not in (None, self.starts):
                raise OtherConnection
            znodes, results = dict(self._znodes), []
            for operation in operations:
                try:
                    results.append(
                        apply(
                            znodes,
                            operation,
                            session=session,
                            zxid=self._zxid + 1,
                            now_ms=time.time_ns() // 1_000_000,
                        )
                    )
                except REFUSALS as error:
                    raise TransactionRefused(operation, error) from None
            self._znodes = znodes
            self._zxid += 1
            return results

    def renewed(self, session: int, timeout_s: float) -> int:
        """The session, or a new one where it has expired: as a client library does by itself."""
        with self._lock:
            return self._sessions.renewed(session, timeout_s)

    # --- inside -----------------------------------------------------------------------------------

    def _reach(self, session: int) -> None:
        if self._away:
            self.refused += 1
            raise Unavailable("ZooKeeper is away, says the test kit")
        for number in self._sessions.lapsed():
            if number != session:
                self.expire(number)


class TreeClient(ZooKeeperClient):
    """One session with a :class:`ZooKeeperTree`; one that has expired is begun again, as kazoo
    does."""

    def __init__(
        self, tree: ZooKeeperTree, session: int, timeout_s: float, before_call: Callable[[], None]
    ) -> None:
        self._tree = tree
        self._session = session
        self._before_call = before_call
        self._abandoned = False
        self.session_timeout_s = timeout_s

    @property
    def connections_made(self) -> int:
        return self._tree.starts

    @property
    def hosts(self) -> str:
        return "in memory"

    @property
    def session_id(self) -> int:
        return self._session

    def get_many(
        self, paths: Sequence[str], *, newest: bool = False
    ) -> list[tuple[bytes, ZnodeStat] | None]:
        del newest  # there is one server
        return self._read(lambda: [self._tree.find(path) for path in paths])

    def stats(self, paths: Sequence[str], *, newest: bool = False) -> list[ZnodeStat | None]:
        return [found[1] if found else None for found in self.get_many(paths, newest=newest)]

    def children_of(self, paths: Sequence[str], *, newest: bool = False) -> list[list[str]]:
        del newest
        return self._read(lambda: [self._tree.names_below(path) for path in paths])

    @marked("cas.zookeeper")
    def commit(
        self, operations: Sequence[Operation], *, connection: int | None = None
    ) -> list[Any]:
        self._call()
        return self._tree.commit(self._session, operations, connection)

    def abandon(self) -> None:
        """Its process is gone without a word: the session ends with its time-out."""
        self._abandoned = True
        self.fall_silent()

    def fall_silent(self) -> None:
        """Its process is paused."""
        self._tree.silence(self._session, since_s=time.monotonic())

    def speak_again(self) -> None:
        """The pause is over. A session that has ended meanwhile is begun again with the next
        call."""
        self._tree.silence(self._session, since_s=None)

    def close(self) -> None:
        if not self._abandoned:
            self._tree.expire(self._session)

    def _read(self, what: Callable[[], list[Any]]) -> list[Any]:
        self._call()
        return self._tree.read(self._session, what)

    def _call(self) -> None:
        self._before_call()
        self._session = self._tree.renewed(self._session, self.session_timeout_s)
