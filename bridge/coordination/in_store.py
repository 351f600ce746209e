"""Coordination in the store's own state table: leases by the storage's clock, claims and offsets by compare-and-set.

Keys (names are percent-encoded, so a group may be called anything):

    groups/<group>/members/<member>             {"expires_at_us"}
    groups/<group>/leader                       {"member", "expires_at_us"}
    groups/<group>/assignment                   {partition: member}
    groups/<group>/claims/<topic>/<partition>   {"member"}; the entry's version is the claim's token
    offsets/<group>/<topic>/<partition>         {"offset", "leader_epoch", "metadata", "committed_at_us"}

Crash points: every change is one commit of the state table, so there is no half of one. A member that dies leaves its lease (which runs out) and its claims
(which anybody may take over from then on).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote, unquote

import msgspec

from bridge.coordination.contract import Claim, CommittedOffset, Session, TopicPartition
from store.engines.contract import StateEntry, StateTable
from store.errors import StaleWriter

_encode = msgspec.json.encode


class _Member(msgspec.Struct):
    expires_at_us: int


class _Leader(msgspec.Struct):
    member: str
    expires_at_us: int


class _Holder(msgspec.Struct):
    member: str


class StoreCoordinator:
    """:class:`bridge.coordination.contract.Coordinator` over a :class:`store.engines.contract.StateTable`."""

    def __init__(self, state: StateTable) -> None:
        self._state = state

    # --- membership ------------------------------------------------------------------------------------------------------

    def join(self, group: str, member: str, ttl_s: float) -> Session:
        session = Session(group, member, ttl_s)
        self.renew(session)
        return session

    def renew(self, session: Session) -> None:
        self._state.commit({_member_key(session): _encode(_Member(self._expiry(session)))})

    def leave(self, session: Session) -> None:
        write: dict[str, bytes | None] = {_member_key(session): None}
        entry = self._state.get(_group_key(session.group, "leader"))
        if entry is None or msgspec.json.decode(entry.value, type=_Leader).member != session.member:
            self._state.commit(write)
        elif self._state.commit({**write, entry.key: None}, expect={entry.key: entry.version}) is None:
            self._state.commit(write)  # the lead was lost between the look and the commit

    def members(self, group: str) -> list[str]:
        now_us = self._state.now_us()
        entries = self._state.list(_group_key(group, "members/"))
        return sorted(_last_part(entry.key) for entry in entries if msgspec.json.decode(entry.value, type=_Member).expires_at_us > now_us)

    # --- lead and assignment -----------------------------------------------------------------------------------------------

    def lead(self, session: Session) -> bool:
        key = _group_key(session.group, "leader")
        entry = self._state.get(key)
        if entry is not None:
            leader = msgspec.json.decode(entry.value, type=_Leader)
            if leader.member != session.member and leader.expires_at_us > self._state.now_us():
                return False
        value = _encode(_Leader(session.member, self._expiry(session)))
        return self._state.commit({key: value}, expect={key: entry.version if entry else None}) is not None

    def leader(self, group: str) -> str | None:
        leader = self._current_leader(self._state.get(_group_key(group, "leader")))
        return leader.member if leader else None

    def assign(self, session: Session, assignment: Mapping[int, str]) -> None:
        entry = self._state.get(_group_key(session.group, "leader"))
        leader = self._current_leader(entry)
        write = {_group_key(session.group, "assignment"): _encode({str(partition): member for partition, member in assignment.items()})}
        if entry is None or leader is None or leader.member != session.member or self._state.commit(write, expect={entry.key: entry.version}) is None:
            raise StaleWriter(f"{session.member} does not lead group {session.group!r}; its assignment was refused")

    def assignment(self, group: str) -> dict[int, str]:
        entry = self._state.get(_group_key(group, "assignment"))
        return {int(partition): member for partition, member in msgspec.json.decode(entry.value).items()} if entry else {}

    # --- claims ------------------------------------------------------------------------------------------------------------

    def claim(self, session: Session, topic: str, partition: int) -> Claim | None:
        key = _claim_key(session.group, topic, partition)
        entry = self._state.get(key)
        if entry is not None:
            holder = msgspec.json.decode(entry.value, type=_Holder).member
            if holder != session.member and holder in self.members(session.group):
                return None
        token = self._state.commit({key: _encode(_Holder(session.member))}, expect={key: entry.version if entry else None})
        return Claim(session.group, topic, partition, session.member, token) if token is not None else None

    def release(self, claim: Claim) -> None:
        key = _claim_key(claim.group, claim.topic, claim.partition)
        self._state.commit({key: None}, expect={key: claim.token})

    def owners(self, group: str, topic: str) -> dict[int, str]:
        entries = self._state.list(_group_key(group, f"claims/{_quoted(topic)}/"))
        return {int(_last_part(entry.key)): msgspec.json.decode(entry.value, type=_Holder).member for entry in entries}

    # --- offsets -----------------------------------------------------------------------------------------------------------

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
            write[_offset_key(group, topic, partition)] = _encode(stamped)
        expect: dict[str, int | None] = {_claim_key(claim.group, claim.topic, claim.partition): claim.token for claim in claims}
        if self._state.commit(write, expect=expect) is None:
            lost = ", ".join(f"{claim.topic}/{claim.partition}" for claim in claims)
            raise StaleWriter(f"the offsets of group {group!r} were not saved: a claim on one of {lost} has been taken over")

    def fetch_offsets(self, group: str, partitions: Sequence[TopicPartition] | None = None) -> dict[TopicPartition, CommittedOffset]:
        found: dict[TopicPartition, CommittedOffset] = {}
        for entry in self._state.list(f"offsets/{_quoted(group)}/"):
            _, _, topic, partition = entry.key.split("/")
            found[(unquote(topic), int(partition))] = msgspec.json.decode(entry.value, type=CommittedOffset)
        return found if partitions is None else {key: found[key] for key in partitions if key in found}

    def groups(self) -> list[str]:
        return sorted({unquote(entry.key.split("/")[1]) for entry in self._state.list("offsets/")})

    def delete_offsets(self, group: str) -> None:
        self._state.commit({entry.key: None for entry in self._state.list(f"offsets/{_quoted(group)}/")})

    def _expiry(self, session: Session) -> int:
        return self._state.now_us() + int(session.ttl_s * 1e6)

    def _current_leader(self, entry: StateEntry | None) -> _Leader | None:
        if entry is None:
            return None
        leader = msgspec.json.decode(entry.value, type=_Leader)
        return leader if leader.expires_at_us > self._state.now_us() else None


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _last_part(key: str) -> str:
    return unquote(key.rpartition("/")[2])


def _group_key(group: str, rest: str) -> str:
    return f"groups/{_quoted(group)}/{rest}"


def _member_key(session: Session) -> str:
    return _group_key(session.group, f"members/{_quoted(session.member)}")


def _claim_key(group: str, topic: str, partition: int) -> str:
    return _group_key(group, f"claims/{_quoted(topic)}/{partition}")


def _offset_key(group: str, topic: str, partition: int) -> str:
    return f"offsets/{_quoted(group)}/{_quoted(topic)}/{partition}"
