"""ApiVersions (key 18), versions 0–4: which APIs are here. An unknown version is answered in
version 0 with error 35 and this API's own range (KIP-511)."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import APIS, api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 18
VERSIONS: Final = (0, 4)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del context, request, head, peer
    keys = [
        {"api_key": each.key, "min_version": each.versions[0], "max_version": each.versions[1]}
        for _, each in sorted(APIS.items())
    ]
    return {"error_code": ErrorCode.none, "api_keys": keys, "throttle_time": 0}


def unsupported() -> dict[str, Any]:
    """The answer to a version that is not here."""
    return {
        "error_code": ErrorCode.unsupported_version,
        "api_keys": [{"api_key": KEY, "min_version": VERSIONS[0], "max_version": VERSIONS[1]}],
    }
