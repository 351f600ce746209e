"""ListPartitionReassignments (key 46), version 0: none. No partition has copies here that could be
moved from one gateway to another: any of them can read it.

Answered because tools that list show an error instead of a page, or of an empty list, when it is
not. Topics that are asked for are not looked up.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 46
VERSIONS: Final = (0, 0)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del context, request, head, peer
    return {"throttle_time": 0, "error_code": ErrorCode.none, "error_message": None, "topics": []}
