"""SaslAuthenticate (key 36), versions 0–2, session lifetime 0: a connection is authenticated once,
for as long as it lasts. Here: the answer when it comes too late, or where no authentication is;
before, :mod:`cellfeed.bridge.gateway.security.authentication` answers."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 36
VERSIONS: Final = (0, 2)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del context, request, head, peer
    return {
        "error_code": ErrorCode.illegal_sasl_state,
        "error_message": "this connection needs no authentication, or has it already",
        "auth_bytes": b"",
        "session_lifetime": 0,
    }
