"""OffsetCommit (key 8), versions 2–9: offsets of a consumer group, durable before the answer.

Order of checks: coordinator, identity, generation, then each partition. A save carries the fence of
this gateway's claim on the group: one that was paused and has lost the group moves no offset. An
unknown topic or partition is answered for itself, the others are saved. Retention times (versions
2–4) are ignored: offsets are kept until the group is deleted.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.gateway.apis.coordinator_errors import coordinator_error
from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.limits import GROUP_ID_BYTES_MAX, OFFSET_METADATA_BYTES_MAX
from cellfeed.bridge.gateway.topics.topics import Topic
from cellfeed.bridge.gateway.wire.protocol import RequestHead
from cellfeed.store.errors import CellfeedError
from cellfeed.store.limits import ADDED_ID_MAX

KEY: Final = 8
VERSIONS: Final = (2, 9)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del head
    named = await context.topics_named(topic.name for topic in request.topics)
    async with context.groups.offsets_lock(request.group_id):
        refused = _refused(context, request, peer)
        errors: list[list[ErrorCode]] = []
        saved: dict[tuple[str, int], CommittedOffset] = {}
        for topic, found in zip(request.topics, named, strict=True):
            errors.append(
                [
                    refused or _partition_error(context, peer, topic.name, found, each)
                    for each in topic.partitions
                ]
            )
            for each, error in zip(topic.partitions, errors[-1], strict=True):
                if error is ErrorCode.none:
                    epoch = getattr(each, "committed_leader_epoch", -1)
                    saved[(topic.name, each.partition_index)] = CommittedOffset(
                        each.committed_offset, epoch, each.committed_metadata or ""
                    )
        failed = await _save(context, request.group_id, saved) if saved else ErrorCode.none
    return {
        "throttle_time": 0,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": each.partition_index, "error_code": error or failed}
                    for each, error in zip(topic.partitions, of_topic, strict=True)
                ],
            }
            for topic, of_topic in zip(request.topics, errors, strict=True)
        ],
    }


def _refused(context: GatewayContext, request: Any, peer: Peer) -> ErrorCode | None:
    """Why the whole commit is refused."""
    if not request.group_id or len(request.group_id.encode()) > GROUP_ID_BYTES_MAX:
        return ErrorCode.invalid_group_id
    if not context.may(peer, "group", request.group_id, "read"):
        return ErrorCode.group_authorization_failed
    if context.cluster.refuses(request.group_id):
        return ErrorCode.invalid_group_id
    if error := context.cluster.group_error(request.group_id):
        return error
    generation = getattr(
        request, "generation_id_or_member_epoch", getattr(request, "generation_id", -1)
    )
    return context.groups.commit_error(
        request.group_id, request.member_id, getattr(request, "group_instance_id", None), generation
    )


def _partition_error(
    context: GatewayContext, peer: Peer, name: str, topic: Topic | None, partition: Any
) -> ErrorCode:
    if not context.may(peer, "topic", name, "read"):
        return ErrorCode.topic_authorization_failed
    if error := context.partition_error(topic, partition.partition_index):
        return error
    if not 0 <= partition.committed_offset <= ADDED_ID_MAX + 1:
        return ErrorCode.offset_out_of_range
    if len((partition.committed_metadata or "").encode()) > OFFSET_METADATA_BYTES_MAX:
        return ErrorCode.offset_metadata_too_large
    return ErrorCode.none


async def _save(
    context: GatewayContext, group_id: str, offsets: dict[tuple[str, int], CommittedOffset]
) -> ErrorCode:
    # Taken in the same step of the event loop as the check of the generation.
    claim = context.cluster.claim(group_id)
    try:
        await context.in_coordination(
            context.offsets.commit_offsets, group_id, offsets, claims=[claim]
        )
    except CellfeedError as error:
        return coordinator_error(error)
    return ErrorCode.none
