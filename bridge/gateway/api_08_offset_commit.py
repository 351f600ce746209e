"""OffsetCommit (key 8), versions 2–9: offsets of a consumer group, durable before the answer.

Order of checks: identity, generation, then each partition. An unknown topic or partition is answered for itself, the others are saved. Retention
times (version 2–4) are ignored: offsets are kept until the group is deleted.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from bridge.coordination.contract import CommittedOffset
from bridge.gateway.context import GatewayContext, Peer
from bridge.gateway.limits import OFFSET_METADATA_BYTES_MAX
from bridge.gateway.protocol import RequestHead
from store.errors import CellfeedError

KEY: Final = 8
VERSIONS: Final = (2, 9)


async def handle(context: GatewayContext, request: Any, head: RequestHead, peer: Peer) -> dict[str, Any]:
    del peer
    generation = getattr(request, "generation_id_or_member_epoch", getattr(request, "generation_id", -1))
    refused = context.groups.commit_error(request.group_id, request.member_id, getattr(request, "group_instance_id", None), generation)
    if not request.group_id and generation >= 0:
        refused = ErrorCode.invalid_group_id
    errors: dict[tuple[str, int], ErrorCode] = {}
    saved: dict[tuple[str, int], CommittedOffset] = {}
    for topic in request.topics:
        found = await context.topic(topic.name)
        for each in topic.partitions:
            key = (topic.name, each.partition_index)
            error = refused or context.partition_error(found, each.partition_index)
            metadata = each.committed_metadata or ""
            if error is ErrorCode.none and len(metadata.encode()) > OFFSET_METADATA_BYTES_MAX:
                error = ErrorCode.offset_metadata_too_large
            if error is ErrorCode.none:
                saved[key] = CommittedOffset(each.committed_offset, getattr(each, "committed_leader_epoch", -1), metadata)
            errors[key] = error
    if saved:
        try:
            await context.in_thread(context.offsets.commit_offsets, request.group_id, saved)
        except CellfeedError as error:
            code = ErrorCode.coordinator_not_available if error.retriable else ErrorCode.invalid_group_id
            errors.update(dict.fromkeys(saved, code))
    return {
        "throttle_time": 0,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": each.partition_index, "error_code": errors[(topic.name, each.partition_index)]} for each in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    }
