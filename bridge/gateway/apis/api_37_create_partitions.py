"""CreatePartitions (key 37), versions 0–3: refused for every topic, with the reason. A
partition is a shard, and a datastore keeps the number of shards that it began with."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.refused import TOPICS
from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 37
VERSIONS: Final = (0, 3)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del context, head, peer
    refused = {"error_code": ErrorCode.topic_authorization_failed, "error_message": TOPICS}
    return {
        "throttle_time": 0,
        "results": [{"name": topic.name, **refused} for topic in request.topics],
    }
