"""OffsetFetch (key 9), versions 1–9: the offsets that a group has committed; -1 where it has
committed none.

From version 8 on a request names several groups; from version 2 on no list of topics means all.
``require_stable`` changes nothing: there are no transactions. While the coordination is away the
answer is COORDINATOR_LOAD_IN_PROGRESS, the one error that every client tries again after at the
same gateway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead
from cellfeed.store.errors import StaleWriter, Unavailable

KEY: Final = 9
VERSIONS: Final = (1, 9)
_FIRST_WITH_GROUPS: Final = 8
_NOTHING: Final = CommittedOffset(-1)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    if head.version >= _FIRST_WITH_GROUPS:
        groups = [
            await _group(context, peer, group.group_id, group.topics) for group in request.groups
        ]
        return {"throttle_time": 0, "groups": groups}
    return {"throttle_time": 0, **await _group(context, peer, request.group_id, request.topics)}


async def _group(context: GatewayContext, peer: Peer, group_id: str, asked: Any) -> dict[str, Any]:
    if not context.may(peer, "group", group_id, "describe"):
        return _refused(group_id, ErrorCode.group_authorization_failed, asked)
    try:
        async with context.groups.offsets_lock(group_id):
            # Behind the wait: another gateway may have the group by now.
            if error := context.cluster.group_error(group_id):
                return _refused(group_id, error, asked)
            claim = context.cluster.claim(group_id)
            committed = await context.in_coordination(context.offsets.fetch_offsets, group_id)
            # Behind a coordination that went back in time they are not the saved ones; its claims
            # are void.
            await context.in_coordination(
                context.offsets.commit_offsets, group_id, {}, claims=[claim]
            )
    except StaleWriter:
        return _refused(group_id, ErrorCode.not_coordinator, asked)
    except Unavailable:
        return _refused(group_id, ErrorCode.coordinator_not_available, asked)
    if asked is None:
        wanted: dict[str, list[int]] = {}
        for topic, partition in sorted(committed):
            if not context.may(peer, "topic", topic, "describe"):
                continue
            wanted.setdefault(topic, []).append(partition)
    else:
        wanted = {topic.name: list(topic.partition_indexes) for topic in asked}
    topics = []
    for name, partitions in wanted.items():
        if context.may(peer, "topic", name, "describe"):
            answered = [_partition(committed, name, partition) for partition in partitions]
        else:
            answered = [
                {
                    **_partition({}, name, partition),
                    "error_code": ErrorCode.topic_authorization_failed,
                }
                for partition in partitions
            ]
        topics.append({"name": name, "partitions": answered})
    return {"group_id": group_id, "topics": topics, "error_code": ErrorCode.none}


def _refused(group_id: str, error: ErrorCode, asked: Any) -> dict[str, Any]:
    answered = (
        ErrorCode.coordinator_load_in_progress
        if error is ErrorCode.coordinator_not_available
        else error
    )
    # Version 1 has no error but each partition's.
    partitions = [
        {
            "name": topic.name,
            "partitions": [
                {**_partition({}, topic.name, each), "error_code": answered}
                for each in topic.partition_indexes
            ],
        }
        for topic in asked or ()
    ]
    return {"group_id": group_id, "topics": partitions, "error_code": answered}


def _partition(
    committed: Mapping[tuple[str, int], CommittedOffset], topic: str, partition: int
) -> dict[str, Any]:
    offset = committed.get((topic, partition), _NOTHING)
    return {
        "partition_index": partition,
        "committed_offset": offset.offset,
        "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "error_code": ErrorCode.none,
    }
