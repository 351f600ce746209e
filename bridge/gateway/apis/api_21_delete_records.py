"""DeleteRecords (key 21), versions 0–2: refused for every partition. A shard's log is
shortened with ``cellfeed trim``."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 21
VERSIONS: Final = (0, 2)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del context, head, peer
    refused = {"low_watermark": -1, "error_code": ErrorCode.topic_authorization_failed}
    return {
        "throttle_time": 0,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": partition.partition_index, **refused}
                    for partition in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    }
