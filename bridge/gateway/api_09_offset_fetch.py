"""OffsetFetch (key 9), versions 1–9: what a group has committed; offset -1 where it has committed nothing.

From version 8 on a request names several groups; from version 2 on no list of topics means all. ``require_stable`` changes nothing: there are no transactions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from bridge.coordination.contract import CommittedOffset
from bridge.gateway.context import GatewayContext, Peer
from bridge.gateway.protocol import RequestHead

KEY: Final = 9
VERSIONS: Final = (1, 9)
_FIRST_WITH_GROUPS: Final = 8
_NOTHING: Final = CommittedOffset(-1)


async def handle(context: GatewayContext, request: Any, head: RequestHead, peer: Peer) -> dict[str, Any]:
    del peer
    if head.version >= _FIRST_WITH_GROUPS:
        groups = [await _group(context, group.group_id, group.topics) for group in request.groups]
        return {"throttle_time": 0, "groups": groups}
    return {"throttle_time": 0, **await _group(context, request.group_id, request.topics)}


async def _group(context: GatewayContext, group_id: str, asked: Any) -> dict[str, Any]:
    async with context.groups.offsets_lock(group_id):
        committed = await context.in_thread(context.offsets.fetch_offsets, group_id)
    if asked is None:
        wanted: dict[str, list[int]] = {}
        for topic, partition in sorted(committed):
            wanted.setdefault(topic, []).append(partition)
    else:
        wanted = {topic.name: list(topic.partition_indexes) for topic in asked}
    topics = [{"name": name, "partitions": [_partition(committed, name, partition) for partition in partitions]} for name, partitions in wanted.items()]
    return {"group_id": group_id, "topics": topics, "error_code": ErrorCode.none}


def _partition(committed: Mapping[tuple[str, int], CommittedOffset], topic: str, partition: int) -> dict[str, Any]:
    offset = committed.get((topic, partition), _NOTHING)
    return {
        "partition_index": partition,
        "committed_offset": offset.offset,
        "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "error_code": ErrorCode.none,
    }
