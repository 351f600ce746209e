"""The consumer groups of one gateway: drives each group's state machine with the event loop's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

from kio.schema.errors import ErrorCode

from bridge.gateway.group import Group, JoinRequest, Reply
from bridge.gateway.limits import GROUPS_MAX


class GroupTable:
    """Groups by id. A group lives here while it has members; its offsets are kept elsewhere and outlive it."""

    def __init__(self, initial_delay_s: float) -> None:
        self._initial_delay_s = initial_delay_s
        self._groups: dict[str, Group] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._offsets_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def get(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def all(self) -> list[Group]:
        return [self._groups[group_id] for group_id in sorted(self._groups)]

    async def join(self, group_id: str, request: JoinRequest) -> Mapping[str, Any]:
        """The response fields, when the state machine gives them."""
        group = self._groups.get(group_id)
        if group is None:
            if request.member_id:
                return {"error_code": ErrorCode.unknown_member_id, "protocol_name": None, "leader": "", "member_id": request.member_id, "members": []}
            if len(self._groups) >= GROUPS_MAX:
                return {"error_code": ErrorCode.group_max_size_reached, "protocol_name": None, "leader": "", "member_id": "", "members": []}
            group = self._groups[group_id] = Group(group_id, self._initial_delay_s)
        answer = _Answer()
        group.join(request, answer.reply, self._now())
        self._after_change(group)
        return await answer.future

    async def sync(self, group: Group, member_id: str, instance_id: str | None, generation: int, assignments: Mapping[str, bytes]) -> Mapping[str, Any]:
        """The response fields, when the leader has assigned."""
        answer = _Answer()
        group.sync(member_id, instance_id, generation, assignments, answer.reply, self._now())
        self._after_change(group)
        return await answer.future

    def heartbeat(self, group: Group, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        error = group.heartbeat(member_id, instance_id, generation, self._now())
        self._after_change(group)
        return error

    def leave(self, group: Group, member_id: str, instance_id: str | None) -> ErrorCode:
        error = group.leave(member_id, instance_id, self._now())
        self._after_change(group)
        return error

    def commit_error(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode | None:
        """Why this commit is refused; None when it is allowed. A group without members takes commits without a generation."""
        group = self._groups.get(group_id)
        if group is None:
            if generation < 0:
                return None
            return ErrorCode.illegal_generation
        error = group.commit_error(member_id, instance_id, generation, self._now())
        self._after_change(group)
        return error

    def offsets_lock(self, group_id: str) -> asyncio.Lock:
        """Held over the check of a commit and the commit itself, and over reading offsets: a commit that was allowed in one generation is done before
        a member of the next one reads where to go on, and cannot land on top of its commits (I20)."""
        lock = self._offsets_locks.get(group_id)
        if lock is None:
            lock = self._offsets_locks[group_id] = asyncio.Lock()
        return lock

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _after_change(self, group: Group) -> None:
        if (timer := self._timers.pop(group.group_id, None)) is not None:
            timer.cancel()
        if group.dead:
            self._groups.pop(group.group_id, None)
            return
        deadline_s = group.next_deadline()
        if deadline_s is not None:
            self._timers[group.group_id] = asyncio.get_running_loop().call_at(deadline_s, self._tick, group)

    def _tick(self, group: Group) -> None:
        group.tick(self._now())
        self._after_change(group)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


class _Answer:
    """A reply function and the future that it fills; a second reply, or one after the request was given up, does nothing."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()

    @property
    def reply(self) -> Reply:
        def fill(values: Mapping[str, Any]) -> None:
            if not self.future.done():
                self.future.set_result(values)

        return fill
