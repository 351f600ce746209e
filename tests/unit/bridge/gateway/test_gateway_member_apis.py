"""APIs of members of consumer groups: limits of their requests, and the
coordinator that they are sent to."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis import (
    api_08_offset_commit,
    api_10_find_coordinator,
    api_11_join_group,
    api_12_heartbeat,
    api_13_leave_group,
    api_14_sync_group,
    api_16_list_groups,
)
from cellfeed.bridge.gateway.limits import (
    GROUP_ID_BYTES_MAX,
    GROUP_METADATA_BYTES_MAX,
    SESSION_TIMEOUT_MAX_S,
    SESSION_TIMEOUT_MIN_S,
)
from tests.support.gateway_context import KnownHeads, errors_of, topics_of

GROUP = "payers"


@pytest.fixture
def known() -> KnownHeads:
    found = KnownHeads()
    found.context.active_groups = cast("Any", SimpleNamespace(expect_member=nothing_against))
    found.context.cluster.group_error = lambda group_id: ErrorCode.none  # type: ignore[method-assign]
    return found


async def nothing_against(*_: object) -> None:
    """No other gateway has the group."""


# --- JoinGroup ------------------------------------------------------------------------------------


def join(known: KnownHeads, version: int = 9, **fields: Any) -> tuple[ErrorCode, list[Any]]:
    """The error, and the joins that the group was asked for."""
    joins: list[Any] = []

    async def joined(_group: str, request: Any) -> dict[str, Any]:
        joins.append(request)
        return {"error_code": ErrorCode.none}

    known.context.groups = cast("Any", SimpleNamespace(join=joined))
    request: dict[str, Any] = {
        "group_id": GROUP,
        "member_id": "",
        "session_timeout": timedelta(seconds=10),
        "protocol_type": "consumer",
        "protocols": [SimpleNamespace(name="range", metadata=b"m")],
        **fields,
    }
    return known.ask(api_11_join_group, version, **request)["error_code"], joins


@pytest.mark.parametrize(
    ("seconds", "error"),
    [
        (SESSION_TIMEOUT_MIN_S, ErrorCode.none),
        (SESSION_TIMEOUT_MIN_S - 0.1, ErrorCode.invalid_session_timeout),
        (SESSION_TIMEOUT_MAX_S, ErrorCode.none),
        (SESSION_TIMEOUT_MAX_S + 0.1, ErrorCode.invalid_session_timeout),
    ],
)
def test_a_session_lasts_between_its_bounds(
    known: KnownHeads, seconds: float, error: ErrorCode
) -> None:
    assert join(known, session_timeout=timedelta(seconds=seconds))[0] is error


@pytest.mark.parametrize(("more", "error"), [(0, 0), (1, ErrorCode.group_max_size_reached)])
def test_the_metadata_of_a_member_is_bounded_over_all_its_protocols(
    known: KnownHeads, more: int, error: int
) -> None:
    half = GROUP_METADATA_BYTES_MAX // 2
    protocols = [
        SimpleNamespace(name="a", metadata=b"m" * half),
        SimpleNamespace(name="b", metadata=b"m" * (half + more)),
    ]
    assert join(known, protocols=protocols)[0] == error


@pytest.mark.parametrize("group_id", ["", "g" * (GROUP_ID_BYTES_MAX + 1)])
def test_a_group_has_a_name_of_bounded_length(known: KnownHeads, group_id: str) -> None:
    partition = {"partition_index": 0, "committed_offset": 0, "committed_metadata": None}
    asked = {"group_id": group_id, "member_id": "", "generation_id": -1}
    answer = known.ask(api_08_offset_commit, 8, **asked, topics=topics_of(partition))
    assert errors_of(answer) == [ErrorCode.invalid_group_id]
    assert join(known, group_id=group_id) == (ErrorCode.invalid_group_id, [])


def test_a_client_without_a_rebalance_time_out_gets_its_sessions(known: KnownHeads) -> None:
    assert join(known, 0)[1][0].rebalance_timeout_s == 10
    longer = join(known, 1, rebalance_timeout=timedelta(seconds=60))[1]
    assert longer[0].rebalance_timeout_s == 60


# --- Heartbeat, LeaveGroup, SyncGroup -------------------------------------------------------------


def sync(known: KnownHeads, version: int = 5, **fields: Any) -> ErrorCode:
    request = {
        "group_id": GROUP,
        "member_id": "m",
        "generation_id": 1,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [],
        **fields,
    }
    return cast("ErrorCode", known.ask(api_14_sync_group, version, **request)["error_code"])


def heartbeat(known: KnownHeads) -> ErrorCode:
    asked = {"group_id": GROUP, "member_id": "m", "generation_id": 1}
    return cast("ErrorCode", known.ask(api_12_heartbeat, 4, **asked)["error_code"])


def leave(known: KnownHeads, version: int = 0) -> ErrorCode:
    members = [SimpleNamespace(member_id="m", group_instance_id=None)]
    answer = known.ask(api_13_leave_group, version, group_id=GROUP, member_id="m", members=members)
    return cast("ErrorCode", answer["error_code"] or answer["members"][0]["error_code"])


def test_a_member_of_a_group_that_is_not_here_joins_again(known: KnownHeads) -> None:
    assert heartbeat(known) is ErrorCode.unknown_member_id
    assert leave(known) is ErrorCode.unknown_member_id
    assert leave(known, 3) is ErrorCode.unknown_member_id
    assert sync(known) is ErrorCode.unknown_member_id


def test_a_member_is_sent_to_the_coordinator_of_its_group(known: KnownHeads) -> None:
    elsewhere = SimpleNamespace(
        group_error=lambda _: ErrorCode.not_coordinator,
        heartbeat_error=lambda _: ErrorCode.not_coordinator,
    )
    known.context.cluster = cast("Any", elsewhere)
    assert heartbeat(known) is ErrorCode.not_coordinator
    assert leave(known) is ErrorCode.not_coordinator
    assert leave(known, 3) is ErrorCode.not_coordinator
    assert sync(known) is ErrorCode.not_coordinator


def test_a_sync_names_the_protocol_of_the_group_and_sends_assignments_within_bounds(
    known: KnownHeads,
) -> None:
    async def synced(*_: object) -> dict[str, Any]:
        return {"error_code": ErrorCode.none}

    group = SimpleNamespace(protocol_type="consumer", protocol="range")
    known.context.groups = cast("Any", SimpleNamespace(get=lambda _: group, sync=synced))
    assert sync(known) is ErrorCode.none
    assert sync(known, protocol_name=None) is ErrorCode.inconsistent_group_protocol
    assert sync(known, protocol_type=None) is ErrorCode.inconsistent_group_protocol
    assert sync(known, 4, protocol_name=None, protocol_type=None) is ErrorCode.none
    assert sync(known, protocol_name="sticky") is ErrorCode.inconsistent_group_protocol
    assert sync(known, protocol_type="connect") is ErrorCode.inconsistent_group_protocol
    largest = SimpleNamespace(member_id="m", assignment=b"a" * GROUP_METADATA_BYTES_MAX)
    larger = SimpleNamespace(member_id="m", assignment=b"a" * (GROUP_METADATA_BYTES_MAX + 1))
    assert sync(known, assignments=[largest]) is ErrorCode.none
    assert sync(known, assignments=[largest, larger]) is ErrorCode.group_max_size_reached


# --- FindCoordinator, ListGroups ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "error"),
    [(1, ErrorCode.cluster_authorization_failed), (2, ErrorCode.invalid_request)],
)
def test_coordinators_of_other_things_than_groups_are_refused_in_words(
    known: KnownHeads, kind: int, error: ErrorCode
) -> None:
    [found] = known.ask(api_10_find_coordinator, 4, key_type=kind, coordinator_keys=["t"])[
        "coordinators"
    ]
    assert (found["error_code"], found["node_id"]) == (error, -1)
    assert found["error_message"]


def groups_listed(known: KnownHeads, **filters: Any) -> list[str]:
    return [each["group_id"] for each in known.ask(api_16_list_groups, 5, **filters)["groups"]]


def test_only_its_coordinator_lists_a_group(known: KnownHeads) -> None:
    known.context.offsets = cast("Any", SimpleNamespace(groups=lambda: ["far", "near"]))
    known.context.cluster = cast("Any", SimpleNamespace(coordinates=lambda group: group == "near"))
    assert groups_listed(known) == ["near"]


def test_groups_are_filtered_by_state_and_type_in_any_case(known: KnownHeads) -> None:
    known.context.offsets = cast("Any", SimpleNamespace(groups=lambda: ["g"]))
    for filters, found in (
        ({"states_filter": ["EMPTY"]}, ["g"]),
        ({"states_filter": ["stable"]}, []),
        ({"types_filter": ["Classic"]}, ["g"]),
        ({"types_filter": ["consumer"]}, []),
    ):
        assert groups_listed(known, **filters) == found
