"""DescribeClientQuotas (key 48), versions 0–1: none. Clients have limits that are the same for all
(:mod:`cellfeed.bridge.gateway.limits`).

Answered because tools that list show an error instead of a page of users or quotas when it is not.
The filter is not checked: nothing fits any filter.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 48
VERSIONS: Final = (0, 1)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del context, request, head, peer
    return {"throttle_time": 0, "error_code": ErrorCode.none, "error_message": None, "entries": []}
