"""APIs of offsets: bounds of committed values, the claim and the lock that every change carries;
groups that are about to return; the answers while the coordination is away."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.gateway.apis import (
    api_02_list_offsets,
    api_08_offset_commit,
    api_09_offset_fetch,
    api_15_describe_groups,
    api_23_offset_for_leader_epoch,
    api_42_delete_groups,
    api_47_offset_delete,
)
from cellfeed.bridge.gateway.groups.spread import slot_of
from cellfeed.bridge.gateway.limits import OFFSET_METADATA_BYTES_MAX
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import StaleWriter, StorageUnavailable
from cellfeed.store.limits import ADDED_ID_MAX
from tests.support.gateway_context import CLAIM, TOPIC, KnownHeads, errors_of, topics_of

GROUP = "payers"


@pytest.fixture
def told() -> KnownHeads:
    found = KnownHeads({0: Head(0, 9, 9, 1, 0)})
    found.offsets.held = {(TOPIC, 0): CommittedOffset(5, 3, "note")}
    return found


def awaited(told: KnownHeads, handler: Any, **fields: Any) -> Any:
    """The answer while the group's members are about to come back."""

    async def asked() -> Any:
        told.groups.take_slot(slot_of(GROUP), 0, {GROUP: 60.0})
        return await handler.handle(
            told.context, SimpleNamespace(**fields), SimpleNamespace(version=0), None
        )

    told.context.may = lambda *_: True  # type: ignore[method-assign]
    return asyncio.run(asked())


# --- OffsetCommit ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "metadata", "error"),
    [
        (0, None, ErrorCode.none),
        (-1, None, ErrorCode.offset_out_of_range),
        (ADDED_ID_MAX + 1, None, ErrorCode.none),
        (ADDED_ID_MAX + 2, None, ErrorCode.offset_out_of_range),
        (7, "é" * (OFFSET_METADATA_BYTES_MAX // 2), ErrorCode.none),
        (7, "é" * (OFFSET_METADATA_BYTES_MAX // 2) + "x", ErrorCode.offset_metadata_too_large),
    ],
)
def test_offset_and_metadata_have_bounds(
    told: KnownHeads, offset: int, metadata: str | None, error: ErrorCode
) -> None:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": metadata}
    answer = told.ask(
        api_08_offset_commit,
        8,
        group_id=GROUP,
        member_id="",
        generation_id=-1,
        topics=topics_of(partition),
    )
    assert errors_of(answer) == [error]
    assert len(told.offsets.calls) == (error is ErrorCode.none)


def test_a_commit_is_judged_by_member_instance_and_generation(
    told: KnownHeads, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def commit_error(*about: Any) -> ErrorCode:
        asked.append(about)
        return ErrorCode.fenced_instance_id

    monkeypatch.setattr(told.groups, "commit_error", commit_error)
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": None}
    answer = told.ask(
        api_08_offset_commit,
        8,
        group_id=GROUP,
        member_id="m",
        group_instance_id="i",
        generation_id=4,
        topics=topics_of(partition),
    )
    assert asked == [(GROUP, "m", "i", 4)]
    assert errors_of(answer) == [ErrorCode.fenced_instance_id]
    assert told.offsets.calls == []


# --- OffsetFetch ----------------------------------------------------------------------------------


def offset_fetch(told: KnownHeads, version: int = 8) -> Any:
    asked = [SimpleNamespace(name=TOPIC, partition_indexes=[0])]
    groups = [SimpleNamespace(group_id=GROUP, topics=asked)]
    answer = told.ask(api_09_offset_fetch, version, group_id=GROUP, topics=asked, groups=groups)
    return answer["groups"][0] if version >= 8 else answer


def test_offsets_are_fetched_with_epoch_and_metadata_under_the_groups_claim(
    told: KnownHeads,
) -> None:
    [partition] = offset_fetch(told)["topics"][0]["partitions"]
    assert (
        partition["committed_offset"],
        partition["committed_leader_epoch"],
        partition["metadata"],
    ) == (5, 3, "note")
    assert told.offsets.calls == [("commit", {}, [CLAIM])], "a void claim shows no offset"


@pytest.mark.parametrize("version", [1, 8])
@pytest.mark.parametrize(
    ("raises", "error"),
    [
        (StaleWriter("another gateway has the slot"), ErrorCode.not_coordinator),
        (StorageUnavailable("away"), ErrorCode.coordinator_load_in_progress),
    ],
)
def test_a_group_whose_offsets_are_unreadable_shows_none(
    told: KnownHeads, raises: Exception, error: ErrorCode, version: int
) -> None:
    told.offsets.raises = raises
    answer = offset_fetch(told, version)
    assert answer["error_code"] is error
    [partition] = answer["topics"][0]["partitions"]
    assert (partition["committed_offset"], partition["error_code"]) == (-1, error)


# --- DeleteGroups, OffsetDelete, DescribeGroups ---------------------------------------------------


def deleted_group(told: KnownHeads) -> ErrorCode:
    [result] = told.ask(api_42_delete_groups, groups_names=[GROUP])["results"]
    error: ErrorCode = result["error_code"]
    return error


def offset_delete(told: KnownHeads) -> tuple[ErrorCode, list[ErrorCode]]:
    answer = told.ask(
        api_47_offset_delete, group_id=GROUP, topics=topics_of({"partition_index": 0})
    )
    return answer["error_code"], errors_of(answer)


def test_an_offset_delete_carries_the_claim_and_names_its_partitions(told: KnownHeads) -> None:
    assert deleted_group(told) is ErrorCode.none
    assert offset_delete(told) == (ErrorCode.none, [ErrorCode.none])
    assert told.offsets.calls == [
        ("delete", None, [CLAIM]),
        ("delete", [(TOPIC, 0)], [CLAIM]),
    ]


@pytest.mark.parametrize(
    ("raises", "error"),
    [
        (StaleWriter("another gateway has the slot"), ErrorCode.not_coordinator),
        (StorageUnavailable("away"), ErrorCode.coordinator_not_available),
    ],
)
def test_an_offset_delete_that_the_coordination_refuses_is_not_acknowledged(
    told: KnownHeads, raises: Exception, error: ErrorCode
) -> None:
    told.offsets.raises = raises
    assert deleted_group(told) is error
    assert offset_delete(told) == (error, [])


def test_offsets_of_a_trigger_are_no_consumers_to_delete(told: KnownHeads) -> None:
    told.triggers = {GROUP}
    assert deleted_group(told) is ErrorCode.invalid_group_id
    assert offset_delete(told) == (ErrorCode.invalid_group_id, [])
    assert told.offsets.calls == []


def test_a_group_whose_members_are_about_to_rejoin_has_members(told: KnownHeads) -> None:
    [result] = awaited(told, api_42_delete_groups, groups_names=[GROUP])["results"]
    assert result["error_code"] is ErrorCode.non_empty_group
    answer = awaited(
        told, api_47_offset_delete, group_id=GROUP, topics=topics_of({"partition_index": 0})
    )
    assert errors_of(answer) == [ErrorCode.group_subscribed_to_topic]
    [group] = awaited(told, api_15_describe_groups, groups=[GROUP])["groups"]
    assert group["group_state"] == "PreparingRebalance"
    assert told.offsets.calls == []


def test_a_group_is_not_dead_because_the_coordination_is_away(told: KnownHeads) -> None:
    told.offsets.raises = StorageUnavailable("away")
    [group] = told.ask(api_15_describe_groups, 5, groups=[GROUP])["groups"]
    assert group["error_code"] is ErrorCode.coordinator_not_available
    assert group["group_state"] == ""


# --- ListOffsets, OffsetForLeaderEpoch ------------------------------------------------------------

MOMENTS_MS = [1_000, 1_000, 2_000, 2_000, 3_000, 4_000]
"""Of the cells 2 to 7; those from 6 on lie above the watermark."""
LOG_START, WATERMARK = 2, 6


def list_offset(timestamp: int) -> tuple[int, int]:
    """Offset and timestamp for a timestamp, of a log whose head was behind a moment ago."""

    def locate(_shard: int, moment_us: int) -> int:
        return next(
            (LOG_START + n for n, ms in enumerate(MOMENTS_MS) if ms * 1000 >= moment_us),
            LOG_START + len(MOMENTS_MS),
        )

    told = KnownHeads(
        {0: Head(0, 1, 1, 1, 0)},
        locate=locate,
        scan=lambda _shard, offset, _limit: [
            SimpleNamespace(created_at_us=MOMENTS_MS[offset - LOG_START] * 1000)
        ],
    )
    told.heads.fresher = {0: Head(LOG_START, WATERMARK, WATERMARK + 2, 1, 0)}
    answer = told.ask(
        api_02_list_offsets, 7, topics=topics_of({"partition_index": 0, "timestamp": timestamp})
    )
    [partition] = answer["topics"][0]["partitions"]
    assert partition["error_code"] is ErrorCode.none
    return partition["offset"], partition["timestamp"]


@pytest.mark.parametrize(
    ("timestamp", "found"),
    [
        (-1, (WATERMARK, -1)),
        (-2, (LOG_START, -1)),
        (-3, (4, 2_000)),
        (-4, (LOG_START, -1)),
        (0, (2, 1_000)),
        (1_000, (2, 1_000)),
        (1_001, (4, 2_000)),
        (2_000, (4, 2_000)),
        (2_001, (-1, -1)),
        (3_000, (-1, -1)),
    ],
)
def test_offsets_by_timestamp_end_at_the_watermark(timestamp: int, found: tuple[int, int]) -> None:
    assert list_offset(timestamp) == found


@pytest.mark.parametrize(
    ("asked", "found"),
    [(0, (-1, -1)), (1, (1, 10)), (2, (1, 10)), (3, (3, 20)), (4, (4, 25)), (5, (-1, -1))],
)
def test_an_epoch_ends_where_the_next_one_starts(asked: int, found: tuple[int, int]) -> None:
    epochs = [(1, 0), (3, 10), (4, 20)]
    assert api_23_offset_for_leader_epoch.end_of_epoch(epochs, asked, 25) == found


def test_epochs_of_a_client_are_compared_in_the_right_direction(told: KnownHeads) -> None:
    told.heads[0] = Head(0, 9, 9, 3, 0)
    errors = [told.context.epoch_error(0, epoch) for epoch in (-1, 0, 2, 3, 4)]
    assert errors == [
        ErrorCode.none,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.none,
        ErrorCode.unknown_leader_epoch,
    ]
    topic: Any = SimpleNamespace(name=TOPIC)
    assert told.context.partition_error(topic, 1) is ErrorCode.unknown_topic_or_partition
