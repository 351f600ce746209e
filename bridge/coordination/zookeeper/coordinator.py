"""Coordination in ZooKeeper: members are ephemeral znodes, lead and claims are compare-and-set on
versions; offsets see ``zookeeper/offsets.py``.

**Leases and sessions.** A ZooKeeper session has one time-out, a member a lease of its own. Members
with the same ``ttl_s`` share a session of ``ttl_s × 1.5``: in an ensemble the leader hears of a
session's life from the server that holds its connection, up to a tick late. So a session can end
that much sooner after an answered call than its time-out says; the half more is what makes the
lease certain for its whole length. A server keeps time-outs between 2 and 20 of its ticks (4 and 40
s as it comes): where it grants less, the lease is two thirds of that, as the session that ``join``
gives says; where it grants more, a dead member is noticed so much later. kazoo keeps a session
alive by itself, a lease it does not: a member that did not call ``renew`` in time is ended by its
own coordinator (C1). ZooKeeper ends one whose process is paused or cut off. A ``renew`` that fails
because ZooKeeper is away counts as a sign of life here, and for nothing there: when ZooKeeper is
back before the session has expired, the member continues in the same session.

**Fencing.** A claim's znode is never deleted. Every claim and release sets it under its version, so
the version is a token that only rises; ``commit_offsets`` checks it in its transaction, with the
claim's random identity and its era. Epochs are versions of one znode per group. Both carry the
group's birth, so those from before a wipe fit nothing. Each join and each claim leaves a mark in
the state table too, so a ZooKeeper that lost it again is noticed, see ``zookeeper/history.py``: it
begins a new era, with new births.

Crash points: every change is one transaction. A ``join`` makes the group's folders first, one by
one; the next one finishes them. A lost answer leaves a member that nobody uses until its session
ends; or a lead or claim that the same session finds to be its own when it asks again. Of a renewal
it leaves a member whose znode names the session that it continues. The process that has that
session tries again and takes its place; no other process has it.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
from kazoo.protocol.states import ZnodeStat

from cellfeed.bridge.coordination.contract import Claim, Session
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
from cellfeed.bridge.coordination.zookeeper.history import MARK_EVERY_S
from cellfeed.bridge.coordination.zookeeper.offsets import TRIES_MAX, Connect, ZooKeeperOffsets
from cellfeed.bridge.coordination.zookeeper.paths import birth_of, joined, unquoted, version_of
from cellfeed.bridge.coordination.zookeeper.url import ZooKeeperAddress
from cellfeed.store.background import SupervisedThread
from cellfeed.store.engines.contract.engine import StateTable
from cellfeed.store.errors import CellfeedError, StaleWriter, Unavailable
from cellfeed.store.histories import NO_HISTORY, History

_log = logging.getLogger("cellfeed.coordination")
_encode = msgspec.json.encode

SESSION_PER_LEASE: Final = 1.5
"""Session time-out for a second of lease, see the module."""

_CLAIMS_IN_A_TRANSACTION: Final = 500
"""Some 500 bytes each: well below the megabyte that ZooKeeper takes in one request
(``jute.maxbuffer``)."""

_LAPSE_CHECK_S: Final = 0.5
"""How often leases that nobody renews are looked for."""


class _Holder(msgspec.Struct, frozen=True):
    """Whose the lead or a claim is."""

    member: str
    epoch: int


class _Renewed(msgspec.Struct, frozen=True):
    """``renews``: the epoch of the session that a member continues."""

    renews: int


@dataclass
class _Lease:
    """``until_s``: when this process has not shown for a whole lease that it still wants it."""

    session: Session
    connection: ZooKeeperClient
    until_s: float


class ZooKeeperCoordinator(ZooKeeperOffsets):
    """:class:`cellfeed.bridge.coordination.contract.Coordinator` over ZooKeeper. ``clock`` is this
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
        self._leases: dict[tuple[str, int], _Lease] = {}
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

    # --- membership -------------------------------------------------------------------------------

    def join(self, group: str, member: str, ttl_s: float) -> Session:
        return self._join(group, member, ttl_s, b"")

    def _join(self, group: str, member: str, ttl_s: float, told: bytes) -> Session:
        """``told``: what the member's znode says."""
        self._end_lapsed()
        connection = self._connection(ttl_s)
        for _ in range(TRIES_MAX):
            birth = self._births.birth(group)
            if birth is None:
                # Entries that an owner of the last era left on their way belong to offsets that
                # somebody may accept as they are.
                birth = self._births.found(group, partial(self.finish_entries, group))
            counter = self._paths.epoch(group, birth)
            found = connection.get(counter, newest=True)
            if found is None:
                self._make_folders(group, birth)
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
                        Create(self._paths.member(group, member, epoch), told, ephemeral=True),
                    ],
                )
            except TransactionRefused:
                continue  # another member was faster
            session = Session(
                group, member, min(ttl_s, connection.session_timeout_s / SESSION_PER_LEASE), epoch
            )
            with self._lock:
                self._leases[(group, epoch)] = _Lease(session, connection, begun_s + session.ttl_s)
            return session
        raise Unavailable(f"{member} could not join group {group!r}: others are faster")

    def renew(self, session: Session) -> Session:
        self._end_lapsed()
        with self._lock:
            lease = self._leases.get((session.group, session.epoch))
            if lease is not None:
                lease.until_s = self._clock() + session.ttl_s + self._address.timeout_s
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
        self._forget(session)
        told = _encode(_Renewed(session.epoch))
        newer = (
            max(self._epochs(session.group, birth, connection).get(session.member, []), default=0)
            if birth is not None
            else 0
        )
        if newer > session.epoch:
            found = connection.get(
                self._paths.member(session.group, session.member, newer), newest=True
            )
            if found is None or found[0] != told:
                raise StaleWriter(
                    f"another process has joined group {session.group!r} as {session.member!r}:"
                    f" this one's session {session.epoch} has ended"
                )
        return self._join(session.group, session.member, session.ttl_s, told)

    def leave(self, session: Session) -> None:
        self._end_lapsed()
        path, leader_path = (
            self._member_path(session),
            self._paths.leader(session.group, birth_of(session.epoch)),
        )
        for _ in range(TRIES_MAX):
            operations: list[Operation] = [Delete(path)]
            leader = self._base.get(leader_path, newest=True)
            if leader is not None and _is_held_by(leader[0], session):
                operations.append(Set(leader_path, b"", leader[1].version))
            try:
                self._base.commit(operations)
            except TransactionRefused as refused:
                if refused.operation == operations[0]:
                    break  # it has ended already
            else:
                break
        self._forget(session)

    def members(self, group: str) -> list[str]:
        self._end_lapsed()
        birth = self._births.birth(group)
        return sorted(self._epochs(group, birth)) if birth is not None else []

    # --- lead and assignment ----------------------------------------------------------------------

    def lead(self, session: Session) -> bool:
        self._end_lapsed()
        birth = birth_of(session.epoch)
        alive = self._alive(session.group, birth)
        if alive.get(session.member) != session.epoch or birth != self._births.birth(session.group):
            return False
        found = self._base.get(self._paths.leader(session.group, birth))
        if found is None or _is_live(found[0], alive):
            return found is not None and _is_held_by(found[0], session)
        # The member's znode is expected too: a session that has ended meanwhile takes no lead.
        take = Set(
            self._paths.leader(session.group, birth),
            _encode(_Holder(session.member, session.epoch)),
            found[1].version,
        )
        try:
            self._history.commit([self._is_alive(session), take])
        except TransactionRefused:
            return False
        return True

    def leader(self, group: str) -> str | None:
        self._end_lapsed()
        birth = self._births.birth(group)
        found = self._base.get(self._paths.leader(group, birth)) if birth is not None else None
        if birth is None or found is None or not _is_live(found[0], self._alive(group, birth)):
            return None
        return _holder(found[0]).member

    def assign(self, session: Session, assignment: Mapping[int, str]) -> None:
        self._end_lapsed()
        birth = birth_of(session.epoch)
        leader_path = self._paths.leader(session.group, birth)
        leader = (
            self._base.get(leader_path, newest=True)
            if birth == self._births.birth(session.group)
            else None
        )
        shares: dict[str, list[int]] = {}
        for partition, member in sorted(assignment.items()):
            shares.setdefault(member, []).append(partition)
        if leader is not None and _is_held_by(leader[0], session):
            write = Set(self._paths.assignment(session.group, birth), _encode(shares))
            try:
                # Whoever takes the lead over sets the leader's znode, so an assignment by the old
                # leader fails on its version.
                self._history.commit(
                    [Check(leader_path, leader[1].version), self._is_alive(session), write]
                )
            except TransactionRefused:
                pass
            else:
                return
        raise StaleWriter(
            f"{session.member} does not lead group {session.group!r}; its assignment was refused"
        )

    def assignment(self, group: str) -> dict[int, str]:
        birth = self._births.birth(group)
        found = self._base.get(self._paths.assignment(group, birth)) if birth is not None else None
        if found is None or not found[0]:
            return {}
        shares = msgspec.json.decode(found[0], type=dict[str, list[int]])
        return {
            partition: member for member, partitions in shares.items() for partition in partitions
        }

    # --- claims -----------------------------------------------------------------------------------

    def claim(self, session: Session, topic: str, partitions: Collection[int]) -> dict[int, Claim]:
        self._end_lapsed()
        birth = birth_of(session.epoch)
        if birth != self._births.birth(session.group):
            return {}
        # What an earlier owner left on its way is in the state table before anybody else works on
        # the partition.
        self.finish_entries(session.group, birth)
        wanted, got = sorted(partitions), {}
        for start in range(0, len(wanted), _CLAIMS_IN_A_TRANSACTION):
            got.update(
                self._claim(session, topic, wanted[start : start + _CLAIMS_IN_A_TRANSACTION])
            )
        if got:
            self.finish_entries(
                session.group, birth
            )  # what was on its way while the claims changed hands
        return got

    def release(self, claims: Collection[Claim]) -> None:
        given_back = [
            Set(
                self._paths.claim(claim.group, claim.topic, claim.partition, birth_of(claim.token)),
                b"",
                version_of(claim.token),
            )
            for claim in claims
        ]
        for start in range(0, len(given_back), _CLAIMS_IN_A_TRANSACTION):
            self._release(given_back[start : start + _CLAIMS_IN_A_TRANSACTION])

    def owners(
        self, group: str, topic: str, partitions: Collection[int] | None = None
    ) -> dict[int, str]:
        birth = self._births.birth(group)
        if birth is None:
            return {}
        if partitions is None:
            partitions = sorted(
                int(name)
                for name in self._base.children(
                    self._paths.claims(group, birth, topic), newest=True
                )
            )
        found = self._base.get_many(
            [self._paths.claim(group, topic, partition, birth) for partition in partitions]
        )
        return {
            partition: _holder(each[0]).member
            for partition, each in zip(partitions, found, strict=True)
            if each is not None and each[0]
        }

    # --- inside -----------------------------------------------------------------------------------

    def _claim(self, session: Session, topic: str, partitions: list[int]) -> dict[int, Claim]:
        birth = birth_of(session.epoch)
        alive = self._alive(session.group, birth)
        if alive.get(session.member) != session.epoch:
            return {}
        era = self._history.era()
        identity = f"{era.identity}-{secrets.token_hex(8)}"
        holder = _encode(_Holder(session.member, session.epoch))
        paths = {
            partition: self._paths.claim(session.group, topic, partition, birth)
            for partition in partitions
        }
        found = dict(
            zip(partitions, self._base.get_many(list(paths.values()), newest=True), strict=True)
        )
        if None in found.values():
            self._base.ensure(self._paths.claims(session.group, birth, topic))
        old = dict(zip(partitions, self._base.children_of(list(paths.values())), strict=True))
        taken: dict[int, Operation] = {}
        identities: list[Operation] = []
        for partition, each in found.items():
            if each is None:
                taken[partition] = Create(paths[partition], holder)
            elif not _is_live(each[0], alive) or _is_held_by(each[0], session):
                taken[partition] = Set(paths[partition], holder, each[1].version)
            else:
                continue
            identities += [Delete(f"{paths[partition]}/{name}") for name in old[partition]]
            identities.append(Create(f"{paths[partition]}/{identity}"))
        if not taken:
            return {}
        try:
            results = self._history.step(
                self._base, [self._is_alive(session), *taken.values(), *identities]
            )[1 : len(taken) + 1]
        except TransactionRefused:
            if len(partitions) == 1:
                return {}
            # Somebody took one of them between the look and the commit: the others are still to be
            # had.
            half = len(partitions) // 2
            return self._claim(session, topic, partitions[:half]) | self._claim(
                session, topic, partitions[half:]
            )
        tokens = [
            joined(birth, result.version if isinstance(result, ZnodeStat) else 0)
            for result in results
        ]
        return {
            partition: Claim(session.group, topic, partition, session.member, token, identity)
            for partition, token in zip(taken, tokens, strict=True)
        }

    def _release(self, given_back: list[Set]) -> None:
        if not given_back:
            return
        try:
            self._base.commit(given_back)
        except TransactionRefused:
            if len(given_back) > 1:  # one of them is void; that keeps no other
                half = len(given_back) // 2
                self._release(given_back[:half])
                self._release(given_back[half:])

    def _connection(self, ttl_s: float) -> ZooKeeperClient:
        with self._lock:
            if ttl_s not in self._connections:
                self._connections[ttl_s] = self._connect(self._address, ttl_s * SESSION_PER_LEASE)
            return self._connections[ttl_s]

    def _make_folders(self, group: str, birth: int) -> None:
        for path in (
            self._paths.members(group, birth),
            self._paths.entries(group, birth),
            self._paths.leader(group, birth),
            self._paths.assignment(group, birth),
            self._paths.epoch(group, birth),  # last: a group that has it is complete
        ):
            self._base.ensure(path)

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

    def _forget(self, session: Session) -> None:
        with self._lock:
            self._leases.pop((session.group, session.epoch), None)

    def _end_lapsed(self) -> None:
        """Ends the sessions that this process has not renewed in time."""
        now_s = self._clock()
        with self._lock:
            lapsed = [key for key, lease in self._leases.items() if lease.until_s <= now_s]
            ended = [self._leases.pop(key) for key in lapsed]
        for number, lease in enumerate(ended):
            try:
                lease.connection.discard([self._member_path(lease.session)])
            except CellfeedError:
                with self._lock:  # the rest is for the next time
                    self._leases.update(
                        {(each.session.group, each.session.epoch): each for each in ended[number:]}
                    )
                raise

    def _watch_leases(self) -> None:
        while not self._closed.wait(_LAPSE_CHECK_S):
            try:
                self._end_lapsed()
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


def _holder(value: bytes) -> _Holder:
    return msgspec.json.decode(value, type=_Holder)


def _is_held_by(value: bytes, session: Session) -> bool:
    return bool(value) and _holder(value) == _Holder(session.member, session.epoch)


def _is_live(value: bytes, alive: Mapping[str, int]) -> bool:
    """Whether the session that holds a lead or a claim is among the live ones."""
    return bool(value) and alive.get((holder := _holder(value)).member) == holder.epoch
