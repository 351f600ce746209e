"""ApiVersions (key 18), versions 0–4: which APIs are here. An unknown version is answered in version 0 with error 35 and this API's own range (KIP-511)."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from bridge.gateway.context import GatewayContext, Peer
from bridge.gateway.protocol import RequestHead

KEY: Final = 18
VERSIONS: Final = (0, 4)


async def handle(context: GatewayContext, request: Any, head: RequestHead, peer: Peer) -> dict[str, Any]:
    from bridge.gateway.apis import APIS

    del context, request, head, peer
    keys = [{"api_key": api.key, "min_version": api.versions[0], "max_version": api.versions[1]} for api in APIS.values()]
    return {"error_code": ErrorCode.none, "api_keys": keys, "throttle_time": 0}


def unsupported() -> dict[str, Any]:
    """The answer to a version that is not here."""
    return {
        "error_code": ErrorCode.unsupported_version,
        "api_keys": [{"api_key": KEY, "min_version": VERSIONS[0], "max_version": VERSIONS[1]}],
    }
