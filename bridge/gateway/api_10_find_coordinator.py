"""FindCoordinator (key 10), versions 0–6: this gateway coordinates every group. Transaction coordinators do not exist here, and the answer says so."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from bridge.gateway.context import GatewayContext, Peer
from bridge.gateway.protocol import RequestHead

KEY: Final = 10
VERSIONS: Final = (0, 6)
_FIRST_WITH_KEYS: Final = 4
_GROUP: Final = 0


async def handle(context: GatewayContext, request: Any, head: RequestHead, peer: Peer) -> dict[str, Any]:
    del peer
    groups = getattr(request, "key_type", _GROUP) == _GROUP
    found: dict[str, Any] = {
        "error_code": ErrorCode.none if groups else ErrorCode.cluster_authorization_failed,
        "error_message": None if groups else "cellfeed's gateway is read-only: there are no transactions",
        "node_id": context.node_id if groups else -1,
        "host": context.advertised_host if groups else "",
        "port": context.advertised_port if groups else -1,
    }
    if head.version < _FIRST_WITH_KEYS:
        return {"throttle_time": 0, **found}
    return {"throttle_time": 0, "coordinators": [{"key": key, **found} for key in request.coordinator_keys]}
