"""One consumer group of the classic protocol as a state machine: Empty → PreparingRebalance →
CompletingRebalance → Stable.

Pure: time comes in as ``now`` (seconds, any monotonic clock). Answers go out through the ``reply``
functions given with Join and Sync, which may be called at once or later. The caller runs
:meth:`Group.tick` at :meth:`Group.next_deadline`. The rules are those of Apache Kafka's classic
coordinator (KIP-62, KIP-345, KIP-394). This file answers requests; generations and time-outs are in
``rebalances.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.groups.members import (
    JoinRequest,
    Member,
    Reply,
    common_protocols,
    identity_error,
    join_refused,
    static_member,
)
from cellfeed.bridge.gateway.groups.rebalances import Rebalances, State
from cellfeed.bridge.gateway.limits import (
    GROUP_MEMBERS_MAX,
    SESSION_TIMEOUT_MAX_S,
    SESSION_TIMEOUT_MIN_S,
)

_EMPTY_CONSUMER_ASSIGNMENT: Final = b"\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"
"""ConsumerProtocolAssignment version 0 without partitions: some clients cannot read no bytes at
all."""


@dataclass
class Group(Rebalances):
    """The group as its members' requests see it; the module says how to call it."""

    def join(self, request: JoinRequest, reply: Reply, now: float) -> None:
        """Answers at once with an error or the current generation, or when the rebalance
        completes."""
        member_id = request.member_id
        if error := self._join_error(request):
            return reply(join_refused(error, member_id))
        if not member_id:
            static = static_member(self.members, request.instance_id)
            if static is not None:
                return self._replace_static(static, request, reply, now)
            member_id = f"{request.instance_id or request.client_id or 'member'}-{uuid4()}"
            if request.instance_id is None and request.version >= 4:
                self.pending[member_id] = now + request.session_timeout_s
                return reply(join_refused(ErrorCode.member_id_required, member_id))
        elif member_id in self.pending:
            del self.pending[member_id]
        elif error := identity_error(self.members, member_id, request.instance_id):
            return reply(join_refused(error, member_id))
        member = self.members.get(member_id)
        if member is None:
            self.members[member_id] = Member(
                member_id, request, now + request.session_timeout_s, parked_join=reply
            )
            self.protocol_type = request.protocol_type
            return self._prepare(now)
        unchanged = member.request.protocols == request.protocols
        if unchanged and (
            self.state is State.COMPLETING
            or (self.state is State.STABLE and member_id != self.leader)
        ):
            member.deadline_s = now + request.session_timeout_s
            return reply(self._joined(member))
        member.request = request
        self._park_join(member, reply)
        return self._prepare(now)

    def sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        assignments: Mapping[str, bytes],
        reply: Reply,
        now: float,
    ) -> None:
        """Answers when the leader has sent the assignment."""
        error = identity_error(self.members, member_id, instance_id) or self._generation_error(
            generation
        )
        if error is None and self.state is State.PREPARING:
            error = ErrorCode.rebalance_in_progress
        if error is not None:
            return reply({"error_code": error, "assignment": b""})
        member = self.members[member_id]
        member.deadline_s = now + member.request.session_timeout_s
        if self.state is State.STABLE:
            return reply(self._synced(member))
        if member.parked_sync is not None:
            member.parked_sync({"error_code": ErrorCode.rebalance_in_progress, "assignment": b""})
        member.parked_sync = reply
        if member_id == self.leader:
            for each in self.members.values():
                each.assignment = assignments.get(each.member_id, b"")
            self.state = State.STABLE
            for each in self.members.values():
                if each.parked_sync is not None:
                    answer, each.parked_sync = each.parked_sync, None
                    each.deadline_s = now + each.request.session_timeout_s
                    answer(self._synced(each))
        return None

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now: float
    ) -> ErrorCode:
        """The error code to answer."""
        error = identity_error(self.members, member_id, instance_id) or self._generation_error(
            generation
        )
        if error is not None:
            return error
        member = self.members[member_id]
        member.deadline_s = now + member.request.session_timeout_s
        return ErrorCode.rebalance_in_progress if self.state is State.PREPARING else ErrorCode.none

    def leave(self, member_id: str, instance_id: str | None, now: float) -> ErrorCode:
        """The error code for this member; ``member_id`` may be empty when the instance id is
        given."""
        if not member_id and instance_id is not None:
            static = static_member(self.members, instance_id)
            if static is None:
                return ErrorCode.unknown_member_id
            member_id = static.member_id
        if self.pending.pop(member_id, None) is not None:
            return ErrorCode.none
        if error := identity_error(self.members, member_id, instance_id):
            return error
        self._remove([member_id], now)
        return ErrorCode.none

    def commit_error(
        self, member_id: str, instance_id: str | None, generation: int, now: float
    ) -> ErrorCode | None:
        """Why an offset commit is refused; None when it is allowed. A generation below zero is an
        admin's or a consumer's without group management."""
        if generation < 0 and not member_id:
            return None if self.state is State.EMPTY else ErrorCode.unknown_member_id
        error = identity_error(self.members, member_id, instance_id) or self._generation_error(
            generation
        )
        if error is None and self.state is State.COMPLETING:
            error = ErrorCode.rebalance_in_progress
        if error is None:
            self.members[member_id].deadline_s = (
                now + self.members[member_id].request.session_timeout_s
            )
        return error

    # --- inside -----------------------------------------------------------------------------------

    def _join_error(self, request: JoinRequest) -> ErrorCode | None:
        if not SESSION_TIMEOUT_MIN_S <= request.session_timeout_s <= SESSION_TIMEOUT_MAX_S:
            return ErrorCode.invalid_session_timeout
        if len(self.members) + len(self.pending) >= GROUP_MEMBERS_MAX and not request.member_id:
            return ErrorCode.group_max_size_reached
        others = [
            member for member in self.members.values() if member.member_id != request.member_id
        ]
        if not request.protocols or not request.protocol_type:
            return ErrorCode.inconsistent_group_protocol
        if others and request.protocol_type != self.protocol_type:
            return ErrorCode.inconsistent_group_protocol
        if others and not common_protocols(others) & {name for name, _ in request.protocols}:
            return ErrorCode.inconsistent_group_protocol
        return None

    def _generation_error(self, generation: int) -> ErrorCode | None:
        return None if generation == self.generation else ErrorCode.illegal_generation

    def _replace_static(self, old: Member, request: JoinRequest, reply: Reply, now: float) -> None:
        """A static member that restarted: a new member id for the same place. Its old requests are
        fenced."""
        for parked in (old.parked_join, old.parked_sync):
            if parked is not None:
                parked(
                    {
                        **join_refused(ErrorCode.fenced_instance_id, old.member_id),
                        "assignment": b"",
                    }
                )
        del self.members[old.member_id]
        new = Member(
            f"{request.instance_id}-{uuid4()}",
            request,
            now + request.session_timeout_s,
            assignment=old.assignment,
        )
        self.members[new.member_id] = new
        was_leader = self.leader == old.member_id
        if was_leader:
            self.leader = new.member_id
        if self.state is State.STABLE and old.request.protocols == request.protocols:
            # No rebalance: the place and its assignment are kept. Clients below version 9 would, as
            # leader, assign again: the answer does not say that they lead.
            answer = {**self._joined(new), "skip_assignment": was_leader}
            if was_leader and request.version < 9:
                answer = {**answer, "leader": old.member_id, "members": []}
            return reply(answer)
        new.parked_join = reply
        return self._prepare(now)

    def _park_join(self, member: Member, reply: Reply) -> None:
        if member.parked_join is not None:
            member.parked_join(join_refused(ErrorCode.rebalance_in_progress, member.member_id))
        member.parked_join = reply

    def _synced(self, member: Member) -> Mapping[str, Any]:
        empty = _EMPTY_CONSUMER_ASSIGNMENT if self.protocol_type == "consumer" else b""
        return {
            "error_code": ErrorCode.none,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "assignment": member.assignment or empty,
        }
