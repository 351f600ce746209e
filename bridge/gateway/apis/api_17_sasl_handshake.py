"""SaslHandshake (key 17), version 1 only, so that tokens always come in SaslAuthenticate and never
raw. Here: the answer once a connection is authenticated, or needs no authentication; before,
:mod:`cellfeed.bridge.gateway.security.authentication` answers."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 17
VERSIONS: Final = (1, 1)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del context, request, head, peer
    return {"error_code": ErrorCode.illegal_sasl_state, "mechanisms": ()}
