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
from typing import Any, Final

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError
from kazoo.protocol.states import ZnodeStat

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
from cellfeed.store.errors import Unavailable
from cellfeed.store.failpoints import marked

_ANY_VERSION: Final = -1


@dataclass(frozen=True)
class _Znode:
    """``children_made``: how many children it ever had, which numbers the next sequential one."""

    value: bytes
    created_zxid: int
    changed_zxid: int
    created_ms: int
    changed_ms: int
    version: int = 0
    owner: int = 0
    children_made: int = 0


@dataclass
class _Session:
    """``silent_since_s``: from when on its process has not been heard of; None while it lives."""

    timeout_s: float
    silent_since_s: float | None = None


@dataclass(frozen=True)
class TreeCopy:
    """A data directory, as it was."""

    zxid: int
    znodes: dict[str, _Znode]
    sessions: dict[int, _Session]
    last_session: int


@dataclass
class ZooKeeperTree:
    """The server. Any number of threads may use it."""

    refused: int = 0
    """Calls that found it away."""
    starts: int = 0
    """How often it came up: each time, clients connect again."""
    _away: bool = False
    _zxid: int = 0
    _znodes: dict[str, _Znode] = field(default_factory=dict)
    _sessions: dict[int, _Session] = field(default_factory=dict)
    _last_session: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.wipe()

    def begin(self, timeout_s: float, before_call: Callable[[], None] = lambda: None) -> TreeClient:
        """A session. ``before_call`` is called before each of its calls, and may wait or raise."""
        with self._lock:
            self._last_session += 1
            self._sessions[self._last_session] = _Session(timeout_s)
            return TreeClient(self, self._last_session, timeout_s, before_call)

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
            for session in self._sessions.values():
                if session.silent_since_s is not None:
                    session.silent_since_s = time.monotonic()

    def wipe(self) -> None:
        """It starts again empty: no znode and no session of before."""
        with self._lock:
            now_ms = time.time_ns() // 1_000_000
            self._znodes = {"/": _Znode(b"", 0, 0, now_ms, now_ms)}
            self._sessions.clear()
            self.starts += 1

    def copy(self) -> TreeCopy:
        """The content of its disk: znodes and sessions."""
        with self._lock:
            return TreeCopy(
                self._zxid, dict(self._znodes), dict(self._sessions), self._last_session
            )

    def go_back(self, copy: TreeCopy) -> None:
        """It starts again with an earlier disk: znodes, transaction numbers and sessions are those
        of then."""
        with self._lock:
            self._zxid, self._znodes, self._last_session = (
                copy.zxid,
                dict(copy.znodes),
                copy.last_session,
            )
            self._sessions = {
                number: _Session(each.timeout_s, each.silent_since_s)
                for number, each in copy.sessions.items()
            }
            self.starts += 1

    def silence(self, session: int, *, since_s: float | None) -> None:
        """The session's process is not heard of from then on (monotonic seconds), or is heard of
        again (None)."""
        with self._lock:
            if session in self._sessions:
                self._sessions[session].silent_since_s = since_s

    def expire(self, session: int) -> None:
        """The session has ended; its ephemeral znodes go."""
        with self._lock:
            if self._sessions.pop(session, None) is None:
                return
            for path in [path for path, znode in self._znodes.items() if znode.owner == session]:
                self._delete(self._znodes, path)

    # --- calls of clients -------------------------------------------------------------------------

    def read(self, session: int, what: Callable[[], list[Any]]) -> list[Any]:
        with self._lock:
            self._reach(session)
            return what()

    def find(self, path: str) -> tuple[bytes, ZnodeStat] | None:
        znode = self._znodes.get(path)
        return (znode.value, self._stat(self._znodes, path)) if znode else None

    def names_below(self, path: str) -> list[str]:
        return _children(self._znodes, path)

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
                    results.append(self._do(znodes, session, operation))
                except (BadVersionError, NodeExistsError, NoNodeError, NotEmptyError) as error:
                    raise TransactionRefused(operation, error) from None
            self._znodes = znodes
            self._zxid += 1
            return results

    def renewed(self, session: int, timeout_s: float) -> int:
        """The session, or a new one where it has expired: as a client library does by itself."""
        with self._lock:
            if session in self._sessions:
                return session
            self._last_session += 1
            self._sessions[self._last_session] = _Session(timeout_s)
            return self._last_session

    # --- inside -----------------------------------------------------------------------------------

    def _reach(self, session: int) -> None:
        if self._away:
            self.refused += 1
            raise Unavailable("ZooKeeper is away, says the test kit")
        now_s = time.monotonic()
        for number, each in list(self._sessions.items()):
            if (
                number != session
                and each.silent_since_s is not None
                and now_s - each.silent_since_s > each.timeout_s
            ):
                self.expire(number)

    def _do(self, znodes: dict[str, _Znode], session: int, operation: Operation) -> Any:
        zxid, now_ms, path = self._zxid + 1, time.time_ns() // 1_000_000, operation.path
        if isinstance(operation, Create):
            parent = znodes.get(_above(path))
            if parent is None:
                raise NoNodeError
            path = f"{path}{parent.children_made:010d}" if operation.sequence else path
            if path in znodes:
                raise NodeExistsError
            znodes[_above(path)] = _with(parent, children_made=parent.children_made + 1)
            znodes[path] = _Znode(
                operation.value,
                zxid,
                zxid,
                now_ms,
                now_ms,
                owner=session if operation.ephemeral else 0,
            )
            return path
        znode = znodes.get(path)
        if znode is None:
            raise NoNodeError
        if operation.version not in (_ANY_VERSION, znode.version):
            raise BadVersionError
        match operation:
            case Check():
                return True
            case Set(value=value):
                znodes[path] = _with(
                    znode,
                    value=value,
                    version=znode.version + 1,
                    changed_zxid=zxid,
                    changed_ms=now_ms,
                )
                return self._stat(znodes, path)
            case Delete():
                if _children(znodes, path):
                    raise NotEmptyError
                self._delete(znodes, path)
                return True

    @staticmethod
    def _delete(znodes: dict[str, _Znode], path: str) -> None:
        del znodes[path]

    @staticmethod
    def _stat(znodes: dict[str, _Znode], path: str) -> ZnodeStat:
        znode, children = znodes[path], len(_children(znodes, path))
        return ZnodeStat(
            czxid=znode.created_zxid,
            mzxid=znode.changed_zxid,
            ctime=znode.created_ms,
            mtime=znode.changed_ms,
            version=znode.version,
            cversion=znode.children_made,
            aversion=0,
            ephemeralOwner=znode.owner,
            dataLength=len(znode.value),
            numChildren=children,
            pzxid=znode.changed_zxid,
        )


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


def _above(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _children(znodes: dict[str, _Znode], path: str) -> list[str]:
    prefix = path.rstrip("/") + "/"
    return [
        other[len(prefix) :]
        for other in znodes
        if other.startswith(prefix) and len(other) > len(prefix) and "/" not in other[len(prefix) :]
    ]


def _with(znode: _Znode, **changes: Any) -> _Znode:
    return _Znode(**{**vars(znode), **changes})
