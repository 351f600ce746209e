"""A group that has changed hands is one with members until they have come back: no late commit
without a generation is taken for an admin's (I20)."""

from __future__ import annotations

import asyncio
from typing import Any

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.groups.group_table import GroupTable
from cellfeed.bridge.gateway.groups.members import JoinRequest
from cellfeed.bridge.gateway.groups.spread import slot_of

SLOT = slot_of("billing")


def joining(member_id: str = "") -> JoinRequest:
    return JoinRequest(
        member_id, None, "client", "host", 10.0, 10.0, "consumer", (("range", b""),), 9
    )


def admin_commit(table: GroupTable) -> ErrorCode | None:
    return table.commit_error("billing", "", None, -1)


def run(scenario: Any) -> None:
    asyncio.run(scenario())


def test_a_commit_without_a_generation_waits_until_the_members_sessions_would_have_ended() -> None:
    async def scenario() -> None:
        table = GroupTable(0.0)
        table.take_slot(SLOT, 1000, {"billing": 0.2})
        assert table.is_awaited("billing")
        assert admin_commit(table) is ErrorCode.unknown_member_id
        await asyncio.sleep(0.25)
        assert admin_commit(table) is None, "nobody has come back: the group is empty"
        table.close()

    run(scenario)


def test_a_group_is_not_taken_over_while_its_first_member_has_only_an_id() -> None:
    async def scenario() -> None:
        table = GroupTable(0.0)
        table.take_slot(SLOT, 1000, {"billing": 10.0})
        answer = await table.join("billing", joining())
        assert answer["error_code"] is ErrorCode.member_id_required
        assert admin_commit(table) is ErrorCode.unknown_member_id
        joined = await table.join("billing", joining(answer["member_id"]))
        assert joined["generation_id"] == 1001, "above every generation of the earlier coordinator"
        assert admin_commit(table) is ErrorCode.unknown_member_id
        table.close()

    run(scenario)


def test_a_request_that_waits_in_a_lost_group_is_answered_not_coordinator() -> None:
    async def scenario() -> None:
        table = GroupTable(10.0)
        table.take_slot(SLOT, 0, {})
        member_id = (await table.join("billing", joining()))["member_id"]
        waiting = asyncio.create_task(table.join("billing", joining(member_id)))
        await asyncio.sleep(0)
        assert not waiting.done()
        table.drop_slot(SLOT)
        assert (await waiting)["error_code"] is ErrorCode.not_coordinator
        assert table.get("billing") is None
        table.close()

    run(scenario)


def test_a_group_that_ended_begins_again_above_its_generations() -> None:
    async def scenario() -> None:
        table = GroupTable(0.0)
        table.take_slot(SLOT, 1000, {})
        for generation in (1001, 1003):
            member_id = (await table.join("billing", joining()))["member_id"]
            joined = await table.join("billing", joining(member_id))
            assert joined["generation_id"] == generation
            group = table.get("billing")
            assert group is not None
            assert table.leave(group, member_id, None) is ErrorCode.none
            assert table.get("billing") is None
        table.close()

    run(scenario)


def test_members_of_a_slot_that_is_lost_are_awaited_elsewhere() -> None:
    async def scenario() -> None:
        table = GroupTable(0.0)
        table.take_slot(SLOT, 1000, {"billing": 10.0})
        table.drop_slot(SLOT)
        assert not table.is_awaited("billing")
        table.take_slot(SLOT, 2000, {})
        assert admin_commit(table) is None
        table.close()

    run(scenario)


def test_requests_of_a_lost_groups_members_change_nothing_in_the_next_one() -> None:
    async def scenario() -> None:
        table = GroupTable(0.0)
        table.take_slot(SLOT, 1000, {})
        member_id = (await table.join("billing", joining()))["member_id"]
        await table.join("billing", joining(member_id))
        lost = table.get("billing")
        assert lost is not None
        table.take_slot(SLOT, 2000, {})
        member_id = (await table.join("billing", joining()))["member_id"]
        joined = await table.join("billing", joining(member_id))
        group = table.get("billing")
        assert table.heartbeat(lost, member_id, None, 1001) is ErrorCode.unknown_member_id
        assert table.get("billing") is group is not None
        assert table.heartbeat(group, member_id, None, joined["generation_id"]) is ErrorCode.none
        assert table._timers, "its members' sessions still end"
        table.close()

    run(scenario)
