"""The consumer groups of one gateway: drives each group's state machine with the event loop's
clock.

Groups live in slots (:mod:`cellfeed.bridge.gateway.groups.slot_claims`). One that this gateway
takes over begins empty, above every generation that the group ever had: its members find that they
are unknown, and join again. One that it loses is forgotten. Members that wait for an answer get
NOT_COORDINATOR, and look for the coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakValueDictionary

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.groups.group import Group
from cellfeed.bridge.gateway.groups.members import JoinRequest, Reply
from cellfeed.bridge.gateway.groups.spread import slot_of
from cellfeed.bridge.gateway.limits import GROUPS_MAX


class GroupTable:
    """Groups by id. A group lives here while it has members; its offsets are kept elsewhere and
    outlive it."""

    def __init__(self, initial_delay_s: float) -> None:
        self._initial_delay_s = initial_delay_s
        self._generations: dict[int, int] = {}
        self._awaited: dict[str, tuple[float, float]] = {}
        """Groups that had members at an earlier coordinator: until when they may come back, by the
        event loop's clock, and their longest session time-out."""
        self.on_ended: Callable[[str], None] = lambda _: None
        """Called with a group whose last member has gone."""
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
                return {
                    "error_code": ErrorCode.unknown_member_id,
                    "protocol_name": None,
                    "leader": "",
                    "member_id": request.member_id,
                    "members": [],
                }
            if len(self._groups) >= GROUPS_MAX:
                return {
                    "error_code": ErrorCode.group_max_size_reached,
                    "protocol_name": None,
                    "leader": "",
                    "member_id": "",
                    "members": [],
                }
            group = self._groups[group_id] = Group(
                group_id,
                self._initial_delay_s,
                generation=self._generations.get(slot_of(group_id), 0),
            )
        answer = _Answer()
        group.join(request, answer.reply, self._now())
        self._after_change(group)
        return await answer.future

    async def sync(
        self,
        group: Group,
        member_id: str,
        instance_id: str | None,
        generation: int,
        assignments: Mapping[str, bytes],
    ) -> Mapping[str, Any]:
        """The response fields, when the leader has assigned."""
        answer = _Answer()
        group.sync(member_id, instance_id, generation, assignments, answer.reply, self._now())
        self._after_change(group)
        return await answer.future

    def heartbeat(
        self, group: Group, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        error = group.heartbeat(member_id, instance_id, generation, self._now())
        self._after_change(group)
        return error

    def leave(self, group: Group, member_id: str, instance_id: str | None) -> ErrorCode:
        error = group.leave(member_id, instance_id, self._now())
        self._after_change(group)
        return error

    def commit_error(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode | None:
        """Why this commit is refused; None when it is allowed. A group without members takes
        commits without a generation."""
        group = self._groups.get(group_id)
        if generation < 0 and self.is_awaited(group_id):
            # Also when one of them has asked for a member id: until it joins with it the group
            # looks empty.
            return ErrorCode.unknown_member_id
        if group is None:
            return None if generation < 0 else ErrorCode.illegal_generation
        error = group.commit_error(member_id, instance_id, generation, self._now())
        self._after_change(group)
        return error

    def offsets_lock(self, group_id: str) -> asyncio.Lock:
        """Held over the check of a commit and the commit itself, and over reading offsets. So a
        commit that was allowed in one generation is done before a member of the next one reads its
        offsets. It cannot land on top of that member's commits (I20)."""
        lock = self._offsets_locks.get(group_id)
        if lock is None:
            lock = self._offsets_locks[group_id] = asyncio.Lock()
        return lock

    def take_slot(self, slot: int, generation: int, active: Mapping[str, float]) -> None:
        """From now on the groups of this slot are ours; those that begin do so above
        ``generation``. ``active``: groups that had members, with their longest session time-out in
        seconds."""
        self.drop_slot(slot)
        self._generations[slot] = generation
        now_s = self._now()
        self._awaited.update(
            {group_id: (now_s + timeout_s, timeout_s) for group_id, timeout_s in active.items()}
        )

    def is_awaited(self, group_id: str) -> bool:
        """Whether members of the group may still come back from an earlier coordinator: it is not
        empty, although none of them is known here."""
        until_s, _ = self._awaited.get(group_id, (0.0, 0.0))
        if until_s > self._now():
            return True
        self._awaited.pop(group_id, None)
        return False

    def awaited_s(self, group_id: str) -> float:
        """The longest session time-out of the members that may still come back; 0 when none may."""
        return self._awaited[group_id][1] if self.is_awaited(group_id) else 0.0

    def drop_slot(self, slot: int) -> None:
        """Forgets the groups of a slot that another gateway coordinates."""
        self._generations.pop(slot, None)
        for group_id in [group_id for group_id in self._awaited if slot_of(group_id) == slot]:
            del self._awaited[group_id]
        for group in [group for group in self._groups.values() if slot_of(group.group_id) == slot]:
            del self._groups[group.group_id]
            if (timer := self._timers.pop(group.group_id, None)) is not None:
                timer.cancel()
            group.abandon()

    def generations(self) -> dict[int, int]:
        """The highest generation that was in use, by slot."""
        found = dict(self._generations)
        for group in self._groups.values():
            slot = slot_of(group.group_id)
            found[slot] = max(found.get(slot, 0), group.generation)
        return found

    def generation(self, group_id: str) -> int:
        """The group's, or the one that it would begin above."""
        group = self._groups.get(group_id)
        return (
            group.generation if group is not None else self._generations.get(slot_of(group_id), 0)
        )

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _after_change(self, group: Group) -> None:
        if self._groups.get(group.group_id) is not group:
            return  # lost with its slot; a later group of its name may have begun here
        if (timer := self._timers.pop(group.group_id, None)) is not None:
            timer.cancel()
        if group.dead:
            # The next group of this name begins above: a late request of a member of this one is
            # never taken for one of the next.
            del self._groups[group.group_id]
            slot = slot_of(group.group_id)
            self._generations[slot] = max(self._generations.get(slot, 0), group.generation)
            self.on_ended(group.group_id)
            return
        deadline_s = group.next_deadline()
        if deadline_s is not None:
            self._timers[group.group_id] = asyncio.get_running_loop().call_at(
                deadline_s, self._tick, group
            )

    def _tick(self, group: Group) -> None:
        group.tick(self._now())
        self._after_change(group)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


class _Answer:
    """A reply function and the future that it fills; a second reply, or one after the request was
    given up, does nothing."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()

    @property
    def reply(self) -> Reply:
        def fill(values: Mapping[str, Any]) -> None:
            if not self.future.done():
                self.future.set_result(values)

        return fill
