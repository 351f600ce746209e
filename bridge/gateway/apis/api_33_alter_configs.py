"""AlterConfigs (key 33), versions 0–2: refused for every resource, with the reason."""

from __future__ import annotations

from typing import Any, Final

from cellfeed.bridge.gateway.apis.refused import refused_settings
from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 33
VERSIONS: Final = (0, 2)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del context, head, peer
    return {"throttle_time": 0, "responses": refused_settings(request.resources)}
