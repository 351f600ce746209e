"""DeleteAcls (key 31), versions 1–3: refused for every filter, with the reason."""

from __future__ import annotations

from typing import Any, Final

from cellfeed.bridge.gateway.apis.refused import refused_acls
from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 31
VERSIONS: Final = (1, 3)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del head, peer
    refused = refused_acls(context, request.filters)
    return {
        "throttle_time": 0,
        "filter_results": [{**each, "matching_acls": []} for each in refused],
    }
