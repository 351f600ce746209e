"""CreateTopics (key 19), versions 2–7: refused for every topic, with the reason. Without
the API, tools ask for it again and again."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.refused import TOPICS
from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 19
VERSIONS: Final = (2, 7)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del context, head, peer
    refused = {
        "topic_id": None,
        "error_code": ErrorCode.topic_authorization_failed,
        "error_message": TOPICS,
        "topic_config_error_code": 0,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": None,
    }
    return {
        "throttle_time": 0,
        "topics": [{"name": topic.name, **refused} for topic in request.topics],
    }
