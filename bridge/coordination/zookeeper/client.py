"""A ZooKeeper session as coordination uses it: reads of many znodes at once, and transactions.
``zookeeper/connection.py`` is one over the network.

Errors of every implementation: Unavailable when a read had no answer; OutcomeUnknown when a change
had none; Refused where an ACL does not allow it; TransactionRefused when an operation of a
transaction failed, so that none was done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.protocol.states import ZnodeStat

from cellfeed.store.errors import Unavailable


@dataclass(frozen=True, slots=True)
class Check:
    """The znode exists and has that version."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    value: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """``version`` -1: any version."""

    path: str
    value: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = -1


Operation = Check | Create | Set | Delete


class TransactionRefused(Exception):
    """One operation of a transaction failed, so none was done. ``error`` is kazoo's: NoNodeError,
    NodeExistsError, BadVersionError, …"""

    def __init__(self, operation: Operation, error: Exception) -> None:
        super().__init__(f"{type(error).__name__} for {operation.path}")
        self.operation = operation
        self.error = error


class OtherConnection(Exception):
    """There is another connection than the one that a commit was meant for; nothing was sent."""


class ZooKeeperClient(ABC):
    """One session. May be used by any number of threads."""

    session_timeout_s: float
    """The time-out that the server granted, once connected: it keeps to limits of its own (2 and 20
    of its ticks)."""

    @property
    @abstractmethod
    def connections_made(self) -> int:
        """Counts connections: a server that was replaced or restarted is behind another one."""

    @property
    @abstractmethod
    def hosts(self) -> str:
        """Where ZooKeeper is, for people."""

    @property
    @abstractmethod
    def session_id(self) -> int:
        """The server's number of the session that is alive now; 0 without one."""

    @abstractmethod
    def get_many(
        self, paths: Sequence[str], *, newest: bool = False
    ) -> list[tuple[bytes, ZnodeStat] | None]:
        """Values and stats, None for a path that does not exist. ``newest``: also writes that
        another client made just before, whichever server it used."""

    @abstractmethod
    def stats(self, paths: Sequence[str], *, newest: bool = False) -> list[ZnodeStat | None]:
        """As :meth:`get_many`, without the values."""

    @abstractmethod
    def children_of(self, paths: Sequence[str], *, newest: bool = False) -> list[list[str]]:
        """Names of the children of each path, in no order; none where there is no such znode."""

    @abstractmethod
    def commit(
        self, operations: Sequence[Operation], *, connection: int | None = None
    ) -> list[Any]:
        """Does all of them or none. The results are the new path of a Create and the new stat of a
        Set. Raises TransactionRefused; OtherConnection where :attr:`connections_made` is not
        ``connection`` any more."""

    @abstractmethod
    def close(self) -> None:
        """Ends the session; its ephemeral znodes go with it. Where ZooKeeper is away they go with
        the session's time-out."""

    def get(self, path: str, *, newest: bool = False) -> tuple[bytes, ZnodeStat] | None:
        return self.get_many([path], newest=newest)[0]

    def children(self, path: str, *, newest: bool = False) -> list[str]:
        """Names, sorted; none when there is no such znode."""
        return sorted(self.children_of([path], newest=newest)[0])

    def ensure(self, path: str, value: bytes = b"") -> None:
        """Makes a znode (with ``value``) and those above it, unless they exist. Each is a commit of
        its own: a half-made path is finished by the next."""
        for _ in range(path.count("/") + 1):
            try:
                self.commit([Create(path, value)])
            except TransactionRefused as refused:
                if isinstance(refused.error, NodeExistsError):
                    return
                if not isinstance(refused.error, NoNodeError) or path.count("/") == 1:
                    raise
                self.ensure(path.rpartition("/")[0])
            else:
                return
        raise Unavailable(f"ZooKeeper: {path} could not be made: somebody deletes a parent of it")

    def discard(self, paths: Sequence[str]) -> None:
        """Deletes znodes without children, those that exist, each by itself."""
        for path in paths:
            try:
                self.commit([Delete(path)])
            except TransactionRefused as refused:
                if not isinstance(refused.error, NoNodeError):
                    raise Unavailable(
                        f"ZooKeeper: {path} could not be deleted: {type(refused.error).__name__}"
                    ) from None
