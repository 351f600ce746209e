"""ConsumerGroupHeartbeat (key 68), versions 0–1: the consumer protocol of KIP-848 is not here.
Every request is answered UNSUPPORTED_VERSION, which ends a consumer with
``group.protocol=consumer`` at once. Without the API, librdkafka waits in silence."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 68
VERSIONS: Final = (0, 1)
_REASON: Final = (
    "the consumer protocol of KIP-848 is not here: set group.protocol=classic, or leave it out"
)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del context, request, head, peer
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.unsupported_version,
        "error_message": _REASON,
        "member_id": None,
        "member_epoch": 0,
        "heartbeat_interval": 0,
        "assignment": None,
    }
