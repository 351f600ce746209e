"""Coordination in the store's own state table: leases that each process watches, claims and offsets
by compare-and-set.

Keys (names are percent-encoded, so a group may be called anything):

    groups/<group>/members/<member>             {}, or {"renews": epoch} behind an earlier session;
                                                the entry's version is the session's epoch
    groups/<group>/leases/<member>              {"epoch", "expires_at_us", "ttl_us"}
    groups/<group>/leader                       {"member", "epoch"}: leads as long as that session
                                                lives
    groups/<group>/assignment                   {member: [partition]}, see ``assignment.py``
    groups/<group>/claims/<topic>/<partition>   {"member", "epoch"}; the entry's version is the
                                                claim's token
    offsets/<group>/<topic>/<partition>         {"offset", "leader_epoch", "metadata",
                                                "committed_at_us"}

Versions are revisions of the whole table: they only rise and none is used twice, also not by an
entry that is deleted and made again.

**No clock is trusted for long.** A lease ends when nobody has renewed it for its time-to-live, by
the observer's own monotonic clock. The storage's clock says only how old a lease is that this
process sees for the first time, see ``watched_leases.py``. So a wrong clock makes no lease last
longer and ends none that somebody watches: one that steps, is an hour ahead, or is another master's
after a promotion. Claims are safe without any clock: each save compares their version.

Crash points: every change is one commit of the state table, so there is no half of one. Claims of
thousands of partitions are several, and each partition's claim is whole. The other exception is a
session's beginning, which is two: the member's entry (which ends an earlier session of that name),
then its lease. Between them the member is as if it had died: a lease of the earlier session may
stand until it runs out, but nobody can use it. A renewal that broke off there, or whose first
commit has no known fate, is tried again with the session that it began with; the entry says that it
is this one's, and not another process's, for nobody else has that session. A member that dies
leaves its lease (which runs out) and its claims (which anybody may take over from then on).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final
from urllib.parse import unquote

import msgspec

from cellfeed.bridge.coordination.contract import Claim, CommittedOffset, Session, TopicPartition
from cellfeed.bridge.coordination.owners import is_owned_by
from cellfeed.bridge.coordination.saved_calls import SavedCall, SavedCalls
from cellfeed.bridge.coordination.store_claims import StoreClaims
from cellfeed.bridge.coordination.store_keys import (
    claim_key,
    leader_key,
    lease_key,
    member_key,
    offset_key,
    offsets_prefix,
)
from cellfeed.bridge.coordination.store_leadership import StoreLeadership
from cellfeed.bridge.coordination.store_leases import StoreLeases, superseded
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.contract.values import StateEntry
from cellfeed.store.errors import StaleWriter

_encode = msgspec.json.encode


_FEW_PARTITIONS: Final = 16
"""Up to so many offsets are looked up one by one; more are taken from one listing of the group."""


class _Member(msgspec.Struct, frozen=True, omit_defaults=True):
    """``renews``: the epoch of the session that this one continues."""

    renews: int | None = None


class StoreCoordinator:
    """:class:`cellfeed.bridge.coordination.contract.Coordinator` over a
    :class:`cellfeed.store.engines.contract.state_table.StateTable`. ``clock`` is this process's, in
    seconds, and never steps."""

    keeps_in_store = True

    def __init__(self, state: StateTable, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._leases = StoreLeases(state, clock)
        self._claims = StoreClaims(state, self._leases)
        self._leadership = StoreLeadership(state, self._leases)
        self._saved_calls = SavedCalls()

    def close(self) -> None:
        """Nothing is held open."""

    def lineage(self, group: str) -> str:
        del group  # a datastore that loses one group's offsets is lost as a whole
        return "store"

    def has_unwritten_entries(self, group: str) -> bool:
        return False  # they are in one commit with the offsets

    def why_changed(self) -> str | None:
        return None

    # --- membership -------------------------------------------------------------------------------

    def join(self, group: str, member: str, ttl_s: float) -> Session:
        epoch = self._state.commit({member_key(group, member): _encode(_Member())})
        assert epoch is not None, "a commit that expects nothing is never refused"  # noqa: S101 (a promise of the state table, E11)
        return self._leases.begin(Session(group, member, ttl_s, epoch))

    def renew(self, session: Session) -> Session:
        membership_key = member_key(session.group, session.member)
        if self._leases.is_live(session) and self._leases.renew(session):
            return session
        epoch = self._state.commit(
            {membership_key: _encode(_Member(session.epoch))},
            expect={membership_key: session.epoch},
        )
        if epoch is None:
            entry = self._state.get(membership_key)
            if entry is None:
                return self.join(
                    session.group, session.member, session.ttl_s
                )  # forgotten long after its lease ran out
            if _member(entry).renews != session.epoch:
                raise superseded(session)
            epoch = entry.version  # this very renewal, which broke off
        return self._leases.begin(Session(session.group, session.member, session.ttl_s, epoch))

    def leave(self, session: Session) -> None:
        membership_key = member_key(session.group, session.member)
        while True:
            write: dict[str, bytes | None] = {
                membership_key: None,
                lease_key(session.group, session.member): None,
            }
            expect: dict[str, int | None] = {membership_key: session.epoch}
            leader = self._state.get(leader_key(session.group))
            if leader is not None and is_owned_by(leader.value, session):
                write[leader.key] = None
                expect[leader.key] = leader.version
            if self._state.commit(write, expect=expect) is not None:
                return
            member = self._state.get(membership_key)
            if member is None or member.version != session.epoch:
                return  # the name is another session's by now
            # Otherwise the lead was lost between the look and the commit: look again.

    def members(self, group: str) -> list[str]:
        return sorted(self._leases.live_sessions(group))

    # --- lead and assignment ----------------------------------------------------------------------

    def lead(self, session: Session) -> bool:
        return self._leadership.lead(session)

    def leader(self, group: str) -> str | None:
        return self._leadership.leader(group)

    def assign(self, session: Session, assignment: Mapping[int, str]) -> None:
        self._leadership.assign(session, assignment)

    def assignment(self, group: str) -> Mapping[int, str]:
        return self._leadership.assignment(group)

    # --- claims -----------------------------------------------------------------------------------

    def claim(self, session: Session, topic: str, partitions: Collection[int]) -> dict[int, Claim]:
        return self._claims.claim(session, topic, partitions)

    def release(self, claims: Collection[Claim]) -> None:
        self._claims.release(claims)

    def owners(
        self, group: str, topic: str, partitions: Collection[int] | None = None
    ) -> dict[int, str]:
        return self._claims.owners(group, topic, partitions)

    # --- offsets ----------------------------------------------------------------------------------

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        claims: Sequence[Claim] = (),
        entries: Mapping[str, bytes | None] | None = None,
    ) -> None:
        now_us = self._state.now_us()
        write: dict[str, bytes | None] = dict(entries or {})
        for (topic, partition), offset in offsets.items():
            stamped = CommittedOffset(offset.offset, offset.leader_epoch, offset.metadata, now_us)
            write[offset_key(group, topic, partition)] = _encode(stamped)
        self._commit_under(group, write, claims)
        if offsets:
            self._saved_calls.saved(group)

    def when_saved(self, call: SavedCall) -> None:
        self._saved_calls.add(call)

    def fetch_offsets(
        self, group: str, partitions: Sequence[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        if partitions is not None and len(partitions) <= _FEW_PARTITIONS:
            looked_up = {key: self._state.get(offset_key(group, *key)) for key in partitions}
            return {key: _offset(entry) for key, entry in looked_up.items() if entry is not None}
        found: dict[TopicPartition, CommittedOffset] = {}
        for entry in self._state.list(offsets_prefix(group)):
            _, _, topic, partition = entry.key.split("/")
            found[(unquote(topic), int(partition))] = _offset(entry)
        return (
            found if partitions is None else {key: found[key] for key in partitions if key in found}
        )

    def groups(self) -> list[str]:
        return sorted({unquote(entry.key.split("/")[1]) for entry in self._state.list("offsets/")})

    def delete_offsets(
        self,
        group: str,
        partitions: Collection[TopicPartition] | None = None,
        *,
        claims: Sequence[Claim] = (),
    ) -> None:
        keys = {entry.key for entry in self._state.list(offsets_prefix(group))}
        if partitions is not None:
            keys &= {offset_key(group, *each) for each in partitions}
        self._commit_under(group, dict.fromkeys(keys), claims)

    def _commit_under(
        self, group: str, write: Mapping[str, bytes | None], claims: Sequence[Claim]
    ) -> None:
        expect: dict[str, int | None] = {
            claim_key(claim.group, claim.topic, claim.partition): claim.token for claim in claims
        }
        if self._state.commit(write, expect=expect) is None:
            lost = ", ".join(f"{claim.topic}/{claim.partition}" for claim in claims)
            raise StaleWriter(
                f"the offsets of group {group!r} were not saved: a claim on one of {lost} has been"
                " taken over"
            )


def _member(entry: StateEntry) -> _Member:
    return msgspec.json.decode(entry.value, type=_Member)


def _offset(entry: StateEntry) -> CommittedOffset:
    return msgspec.json.decode(entry.value, type=CommittedOffset)
