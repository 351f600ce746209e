"""Notes of groups that have members: written under the claim before a member is let in, for the
longest of their time-outs, and deleted when the last one has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import msgspec
import pytest
from kio.schema.errors import ErrorCode

from cellfeed.bridge.coordination.contract import Claim, Coordinator
from cellfeed.bridge.gateway.groups.active_groups import ActiveGroups, active_key
from cellfeed.bridge.gateway.groups.active_notes import ActiveGroup
from cellfeed.bridge.gateway.groups.cluster import GatewayCluster
from cellfeed.bridge.gateway.groups.group_table import GroupTable
from cellfeed.bridge.gateway.groups.slot_owners import GROUP
from cellfeed.store.errors import CellfeedError, StaleWriter, StorageUnavailable

CLAIM = Claim("__gateways", "__consumer_offsets", 5, "gateway-1", 77)
NAME = "reports"


class _Notes:
    """A coordination that writes down notes, or fails; each with the claims that came with it."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}
        self.claims: list[list[Claim]] = []
        self.fails: CellfeedError | None = None

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[Any, Any],
        *,
        claims: Sequence[Claim] = (),
        entries: Mapping[str, bytes | None] | None = None,
    ) -> None:
        assert (group, offsets) == (GROUP, {})
        if self.fails is not None:
            raise self.fails
        self.claims.append(list(claims))
        for key, value in (entries or {}).items():
            if value is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = value

    def timeout_s(self) -> float | None:
        value = self.entries.get(active_key(NAME))
        return msgspec.json.decode(value, type=ActiveGroup).session_timeout_s if value else None


class _Cluster:
    """``first``: the tenure. ``error``: why the group cannot be changed here."""

    first, error = 10, ErrorCode.none

    def group_error(self, _: str) -> ErrorCode:
        return self.error

    def tenure(self, _: str) -> int:
        return self.first

    def claim(self, _: str) -> Claim:
        return CLAIM


class _Table:
    """``awaited``: the longest time-out of members that may come back."""

    def __init__(self) -> None:
        self.awaited, self.members = 0.0, set[str]()
        self.on_ended: Any = None
        self._lock = asyncio.Lock()

    def awaited_s(self, _: str) -> float:
        return self.awaited

    def offsets_lock(self, _: str) -> asyncio.Lock:
        return self._lock

    def get(self, group_id: str) -> object | None:
        return object() if group_id in self.members else None


class _Parts:
    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self.notes, self.cluster, self.table = _Notes(), _Cluster(), _Table()
        self.active = ActiveGroups(
            cast("Coordinator", self.notes),
            cast("GatewayCluster", self.cluster),
            cast("GroupTable", self.table),
            executor,
        )

    async def expect(self, timeout_s: float) -> ErrorCode:
        return await self.active.expect_member(NAME, timeout_s)

    async def end(self) -> None:
        self.table.on_ended(NAME)
        await self.active.close()


def run(steps: Any) -> None:
    async def all_steps() -> None:
        with ThreadPoolExecutor(1) as executor:
            await cast("Coroutine[Any, Any, None]", steps(_Parts(executor)))

    asyncio.run(all_steps())


def test_a_group_is_noted_under_the_claim_and_once() -> None:
    async def steps(parts: _Parts) -> None:
        assert await parts.expect(10) is ErrorCode.none
        assert await parts.expect(10) is ErrorCode.none
        assert await parts.expect(6) is ErrorCode.none
        assert parts.notes.claims == [[CLAIM]]
        assert parts.notes.timeout_s() == 10
        await parts.end()
        assert parts.notes.claims == [[CLAIM], [CLAIM]]
        assert parts.notes.timeout_s() is None

    run(steps)


def test_the_longest_time_out_of_its_members_is_noted() -> None:
    async def steps(parts: _Parts) -> None:
        await parts.expect(10)
        await parts.expect(30)
        await parts.expect(20)
        assert parts.notes.timeout_s() == 30
        await parts.end()
        parts.table.awaited = 45.0  # members of its last coordinator may still come back
        await parts.expect(10)
        assert parts.notes.timeout_s() == 45

    run(steps)


def test_of_two_members_that_join_at_once_the_longer_time_out_stays() -> None:
    async def steps(parts: _Parts) -> None:
        await asyncio.gather(parts.expect(30), parts.expect(10))
        assert parts.notes.timeout_s() == 30

    run(steps)


def test_a_note_of_an_earlier_tenure_is_written_again() -> None:
    """Another gateway had the slot meanwhile, and may have deleted it."""

    async def steps(parts: _Parts) -> None:
        await parts.expect(30)
        parts.notes.entries.clear()
        parts.cluster.first = 20
        await parts.expect(10)
        assert parts.notes.timeout_s() == 10
        await parts.expect(12)
        assert parts.notes.timeout_s() == 12

    run(steps)


def test_the_note_of_a_group_that_has_a_member_again_stays() -> None:
    async def steps(parts: _Parts) -> None:
        await parts.expect(10)
        parts.table.members.add(NAME)
        await parts.end()
        assert parts.notes.timeout_s() == 10

    run(steps)


@pytest.mark.parametrize(
    ("fails", "error"),
    [
        (StaleWriter("another gateway has the slot"), ErrorCode.not_coordinator),
        (StorageUnavailable("away"), ErrorCode.coordinator_not_available),
    ],
)
def test_a_member_is_not_let_in_before_its_group_is_noted(
    fails: CellfeedError, error: ErrorCode
) -> None:
    async def steps(parts: _Parts) -> None:
        parts.notes.fails = fails
        assert await parts.expect(10) is error
        parts.notes.fails = None
        assert parts.notes.timeout_s() is None
        assert await parts.expect(10) is ErrorCode.none
        assert parts.notes.timeout_s() == 10

    run(steps)


def test_no_members_are_noted_for_a_group_of_another_coordinator() -> None:
    async def steps(parts: _Parts) -> None:
        await parts.expect(10)
        parts.cluster.error = ErrorCode.not_coordinator
        assert await parts.expect(30) is ErrorCode.not_coordinator
        await parts.end()
        assert parts.notes.claims == [[CLAIM]]

    run(steps)
