"""Members of a group in ZooKeeper: ephemeral znodes, and leases that this process ends by itself.

A ZooKeeper session has one time-out, a member a lease of its own. Members with the same ``ttl_s``
share a session of ``ttl_s × 1.5``: in an ensemble the leader hears of a session's life from the
server that holds its connection, up to a tick late. So a session can end that much sooner after an
answered call than its time-out says; the half more makes the lease certain for its whole length. A
server keeps time-outs between 2 and 20 of its ticks (4 and 40 s as it comes): where it grants less,
the lease is two thirds of that, as the session that ``join`` gives says; where it grants more, a
dead member is noticed so much later. kazoo keeps a session alive by itself, a lease it does not: a
member that did not call ``renew`` in time is ended by its own coordinator (C1). ZooKeeper ends one
whose process is paused or cut off. A ``renew`` that fails because ZooKeeper is away counts as a
sign of life here, and for nothing there: when ZooKeeper is back before the session has expired, the
member continues in the same session.

Crash points: every change is one transaction. A ``join`` makes the group's folders first, one by
one; the next one finishes them. A lost answer leaves a member that nobody uses until its session
ends. Of a renewal it leaves a member whose znode names the session that it continues. The process
that has that session tries again and takes its place; no other process has it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from cellfeed.bridge.coordination.contract import Session
from cellfeed.bridge.coordination.owners import is_owned_by
from cellfeed.bridge.coordination.zookeeper.client import (
    Check,
    Create,
    Delete,
    Operation,
    Set,
    TransactionRefused,
    ZooKeeperClient,
)
from cellfeed.bridge.coordination.zookeeper.connection import Connection
from cellfeed.bridge.coordination.zookeeper.entries import TRIES_MAX
from cellfeed.bridge.coordination.zookeeper.history import MARK_EVERY_S
from cellfeed.bridge.coordination.zookeeper.offsets import Connect, ZooKeeperOffsets
from cellfeed.bridge.coordination.zookeeper.own_leases import Lease, OwnLeases
from cellfeed.bridge.coordination.zookeeper.paths import birth_of, joined, unquoted
from cellfeed.bridge.coordination.zookeeper.url import ZooKeeperAddress
from cellfeed.store.background import SupervisedThread
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import CellfeedError, StaleWriter, Unavailable
from cellfeed.store.histories import NO_HISTORY, History

_log = logging.getLogger("cellfeed.coordination")

SESSION_PER_LEASE: Final = 1.5
"""Session time-out for a second of lease, see the module."""

_LAPSE_CHECK_S: Final = 0.5
"""How often leases that nobody renews are looked for."""


class _Renewed(msgspec.Struct, frozen=True):
    """``renews``: the epoch of the session that a member continues."""

    renews: int


class ZooKeeperSessions(ZooKeeperOffsets):
    """Membership of :class:`cellfeed.bridge.coordination.contract.Coordinator`. ``clock`` is this
    process's, in seconds, and measures leases only against itself."""

    def __init__(
        self,
        address: ZooKeeperAddress,
        state: StateTable,
        history: Callable[[], History] = lambda: NO_HISTORY,
        *,
        clock: Callable[[], float] = time.monotonic,
        connect: Connect = Connection,
    ) -> None:
        super().__init__(address, state, history, connect=connect)
        self._clock = clock
        self._lock = threading.Lock()
        self._connections: dict[float, ZooKeeperClient] = {}
        self._leases = OwnLeases(clock, self._member_path)
        self._closed = threading.Event()
        self._watch = SupervisedThread("zookeeper-leases", self._watch_leases)
        self._watch.start()
        self._marking = SupervisedThread("zookeeper-marks", self._mark_saves)
        self._marking.start()

    def close(self) -> None:
        self._closed.set()
        self._watch.join()
        self._marking.join()
        for connection in self._connections.values():
            connection.close()
        super().close()

    def join(self, group: str, member: str, ttl_s: float) -> Session:
        return self._join(group, member, ttl_s, b"")

    def _join(self, group: str, member: str, ttl_s: float, says: bytes) -> Session:
        """``says``: the value of the member's znode."""
        self._leases.end_lapsed()
        connection = self._connection(ttl_s)
        for _ in range(TRIES_MAX):
            birth = self._births.birth(group)
            if birth is None:
                # Entries that an owner of the last era left on their way belong to offsets that
                # somebody may accept as they are.
                birth = self._births.found(group, partial(self.entries.finish, group))
            counter = self._paths.epoch(group, birth)
            found = connection.get(counter, newest=True)
            if found is None:
                for path in self._paths.folders(group, birth):
                    self._base.ensure(path)
                continue
            epoch = joined(birth, found[1].version + 1)
            operations: list[Operation] = [Set(counter, b"", found[1].version)]
            operations += [
                Delete(self._paths.member(group, member, old))
                for old in self._epochs(group, birth, connection).get(member, [])
            ]
            begun_s = self._clock()
            try:
                self._history.step(
                    connection,
                    [
                        *operations,
                        Create(self._paths.member(group, member, epoch), says, ephemeral=True),
                    ],
                )
            except TransactionRefused:
                continue  # another member was faster
            session = Session(
                group, member, min(ttl_s, connection.session_timeout_s / SESSION_PER_LEASE), epoch
            )
            self._leases.add(Lease(session, connection, begun_s + session.ttl_s))
            return session
        raise Unavailable(f"{member} could not join group {group!r}: others are faster")

    def renew(self, session: Session) -> Session:
        self._leases.end_lapsed()
        lease = self._leases.extended(session, session.ttl_s + self._address.timeout_s)
        connection = lease.connection if lease else self._connection(session.ttl_s)
        try:
            birth = self._births.birth(session.group)
            stat = (
                connection.stats([self._member_path(session)], newest=True)[0]
                if birth == birth_of(session.epoch)
                else None
            )
        finally:
            if lease is not None:
                lease.until_s = self._clock() + session.ttl_s
        if lease is not None and stat is not None and stat.ephemeralOwner == connection.session_id:
            return session
        self._leases.forget(session)
        says = msgspec.json.encode(_Renewed(session.epoch))
        newer = (
            max(self._epochs(session.group, birth, connection).get(session.member, []), default=0)
            if birth is not None
            else 0
        )
        if newer > session.epoch:
            found = connection.get(
                self._paths.member(session.group, session.member, newer), newest=True
            )
            if found is None or found[0] != says:
                raise StaleWriter(
                    f"another process has joined group {session.group!r} as {session.member!r}:"
                    f" this one's session {session.epoch} has ended"
                )
        return self._join(session.group, session.member, session.ttl_s, says)

    def leave(self, session: Session) -> None:
        self._leases.end_lapsed()
        path, leader_path = (
            self._member_path(session),
            self._paths.leader(session.group, birth_of(session.epoch)),
        )
        for _ in range(TRIES_MAX):
            operations: list[Operation] = [Delete(path)]
            leader = self._base.get(leader_path, newest=True)
            if leader is not None and is_owned_by(leader[0], session):
                operations.append(Set(leader_path, b"", leader[1].version))
            try:
                self._base.commit(operations)
            except TransactionRefused as refused:
                if refused.operation == operations[0]:
                    break  # it has ended already
            else:
                break
        self._leases.forget(session)

    def members(self, group: str) -> list[str]:
        self._leases.end_lapsed()
        birth = self._births.birth(group)
        return sorted(self._epochs(group, birth)) if birth is not None else []

    # --- inside -----------------------------------------------------------------------------------

    def _connection(self, ttl_s: float) -> ZooKeeperClient:
        with self._lock:
            if ttl_s not in self._connections:
                self._connections[ttl_s] = self._connect(self._address, ttl_s * SESSION_PER_LEASE)
            return self._connections[ttl_s]

    def _epochs(
        self, group: str, birth: int, connection: ZooKeeperClient | None = None
    ) -> dict[str, list[int]]:
        """The live sessions by member. A name has one; none has been seen with more."""
        epochs: dict[str, list[int]] = {}
        for name in (connection or self._base).children(
            self._paths.members(group, birth), newest=True
        ):
            member, _, version = name.rpartition("@")
            epochs.setdefault(unquoted(member), []).append(joined(birth, int(version)))
        return epochs

    def _alive(self, group: str, birth: int) -> dict[str, int]:
        return {member: max(epochs) for member, epochs in self._epochs(group, birth).items()}

    def _is_alive(self, session: Session) -> Check:
        # A member's znode is never written, and its name has the epoch in it.
        return Check(self._member_path(session), 0)

    def _member_path(self, session: Session) -> str:
        return self._paths.member(session.group, session.member, session.epoch)

    def _watch_leases(self) -> None:
        while not self._closed.wait(_LAPSE_CHECK_S):
            try:
                self._leases.end_lapsed()
            except CellfeedError as error:
                _log.info("a lease that ran out could not be ended just now: %s", error)

    def _mark_saves(self) -> None:
        # In a thread of its own: it waits for the state table, which may be away.
        ended = False
        while not ended:
            ended = self._closed.wait(MARK_EVERY_S)
            try:
                self._history.mark_saves()
            except CellfeedError as error:
                _log.info("saves could not be marked just now: %s", error)
