"""DeleteTopics (key 20), versions 1–6: refused for every topic. Since version 5 with the
reason. Since version 6 a topic may be named by its id."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.refused import TOPICS
from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 20
VERSIONS: Final = (1, 6)
_BY_ID_FROM: Final = 6


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del context, peer
    named = (
        [(topic.name, topic.topic_id) for topic in request.topics]
        if head.version >= _BY_ID_FROM
        else [(name, None) for name in request.topic_names]
    )
    refused = {"error_code": ErrorCode.topic_authorization_failed, "error_message": TOPICS}
    return {
        "throttle_time": 0,
        "responses": [{"name": name, "topic_id": topic_id, **refused} for name, topic_id in named],
    }
