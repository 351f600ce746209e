"""InitProducerId (key 22), versions 0–5: refused. CLUSTER_AUTHORIZATION_FAILED is fatal in every
idempotent or transactional producer, so it says so at once."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 22
VERSIONS: Final = (0, 5)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del context, request, head, peer
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.cluster_authorization_failed,
        "producer_id": -1,
        "producer_epoch": -1,
    }
