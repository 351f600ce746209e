"""The rebalances of a consumer group: its members, and when its next generation is complete.

Pure, as ``group.py``, which answers the members' requests on top of it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.groups.members import Member, join_refused, metadata_of_all, vote


class State(enum.StrEnum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass
class Rebalances:
    """Members, generation and state of one group. ``initial_delay_s`` is how long a new group waits
    for more members before its first generation."""

    group_id: str
    initial_delay_s: float = 3.0
    state: State = State.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    pending: dict[str, float] = field(default_factory=dict)
    """Member ids given out by MEMBER_ID_REQUIRED, until they are used or their deadline passes."""
    _rebalance_deadline_s: float = 0.0
    _delay_until_s: float = 0.0

    def next_deadline(self) -> float | None:
        """When :meth:`tick` must be called next, if nothing else happens; None when nothing is
        waiting."""
        deadlines = [member.deadline_s for member in self.members.values() if not member.parked]
        deadlines += self.pending.values()
        if self.state is State.PREPARING:
            deadlines.append(
                self._delay_until_s if self._all_joined() else self._rebalance_deadline_s
            )
        elif self.state is State.COMPLETING:
            deadlines.append(self._rebalance_deadline_s)
        return min(deadlines, default=None)

    def tick(self, now: float) -> None:
        """Removes members whose session ended, and ends rebalances whose time is up."""
        self.pending = {
            member_id: deadline for member_id, deadline in self.pending.items() if deadline > now
        }
        gone = [
            member.member_id
            for member in self.members.values()
            if not member.parked and member.deadline_s <= now
        ]
        if self.state is State.COMPLETING and self._rebalance_deadline_s <= now:
            # The leader, or others, never synced: they are out, the rest joins again.
            gone += [
                member.member_id
                for member in self.members.values()
                if member.parked_sync is None and member.member_id not in gone
            ]
        if gone:
            self._remove(gone, now)
        if self.state is State.PREPARING:
            self._try_complete(now)

    def abandon(self) -> None:
        """Another coordinator has the group: members that wait here are answered NOT_COORDINATOR,
        and look for it."""
        for member in self.members.values():
            for parked in (member.parked_join, member.parked_sync):
                if parked is not None:
                    parked(
                        {
                            **join_refused(ErrorCode.not_coordinator, member.member_id),
                            "assignment": b"",
                        }
                    )
        self.members, self.pending, self.state = {}, {}, State.EMPTY

    @property
    def dead(self) -> bool:
        """Only its offsets are left, which are stored elsewhere."""
        return not self.members and not self.pending

    # --- steps of a rebalance ---------------------------------------------------------------------

    def _prepare(self, now: float) -> None:
        if self.state is not State.PREPARING:
            first = self.state is State.EMPTY
            for member in self.members.values():
                if member.parked_sync is not None:
                    answer, member.parked_sync = member.parked_sync, None
                    member.deadline_s = now + member.request.session_timeout_s
                    answer({"error_code": ErrorCode.rebalance_in_progress, "assignment": b""})
            self.state = State.PREPARING
            self._rebalance_deadline_s = now + max(
                member.request.rebalance_timeout_s for member in self.members.values()
            )
            self._delay_until_s = now + self.initial_delay_s if first else now
        elif self._delay_until_s > now:
            # Still waiting for the first members: each one that comes extends the wait, up to the
            # rebalance time-out.
            self._delay_until_s = min(now + self.initial_delay_s, self._rebalance_deadline_s)
        self._try_complete(now)

    def _all_joined(self) -> bool:
        return not self.pending and all(
            member.parked_join is not None for member in self.members.values()
        )

    def _try_complete(self, now: float) -> None:
        if now >= self._rebalance_deadline_s or (self._all_joined() and now >= self._delay_until_s):
            self._complete(now)

    def _complete(self, now: float) -> None:
        joined = [member for member in self.members.values() if member.parked_join is not None]
        self.members = {
            m.member_id: m
            for m in self.members.values()
            if m.parked_join is not None or m.request.instance_id is not None
        }
        if self.members and not joined:
            # Only static members, and none of them came back yet: their places are kept for another
            # round.
            self._rebalance_deadline_s = now + max(
                member.request.rebalance_timeout_s for member in self.members.values()
            )
            return
        self.generation += 1
        if not self.members:
            self.state, self.leader, self.protocol = State.EMPTY, "", ""
            return
        self.state = State.COMPLETING
        self.protocol = vote(self.members.values())
        if self.leader not in {member.member_id for member in joined}:
            self.leader = joined[0].member_id
        self._rebalance_deadline_s = now + max(
            member.request.rebalance_timeout_s for member in self.members.values()
        )
        for member in joined:
            answer, member.parked_join = member.parked_join, None
            member.assignment = b""
            member.deadline_s = now + member.request.session_timeout_s
            if answer is not None:
                answer(self._joined(member))

    def _remove(self, member_ids: Iterable[str], now: float) -> None:
        for member_id in member_ids:
            member = self.members.pop(member_id)
            for parked in (member.parked_join, member.parked_sync):
                if parked is not None:
                    parked(
                        {**join_refused(ErrorCode.unknown_member_id, member_id), "assignment": b""}
                    )
        if not self.members:
            if self.state is not State.EMPTY:
                self.generation += 1
            self.state, self.leader, self.protocol = State.EMPTY, "", ""
        elif self.state is State.PREPARING:
            self._try_complete(now)
        else:
            self._prepare(now)

    def _joined(self, member: Member) -> Mapping[str, Any]:
        leads = member.member_id == self.leader
        return {
            "error_code": ErrorCode.none,
            "generation_id": self.generation,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "leader": self.leader,
            "member_id": member.member_id,
            "members": metadata_of_all(self.members.values(), self.protocol) if leads else [],
        }
