"""FindCoordinator (key 10), versions 0–6: which gateway coordinates a group.
COORDINATOR_NOT_AVAILABLE while the group changes hands. Transaction coordinators do not exist here,
and the answer says so."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 10
VERSIONS: Final = (0, 6)
_FIRST_WITH_KEYS: Final = 4
_GROUP, _TRANSACTION = 0, 1
_NOWHERE: Final[dict[str, Any]] = {"node_id": -1, "host": "", "port": -1}
_NO_TRANSACTIONS: Final[dict[str, Any]] = {
    **_NOWHERE,
    "error_code": ErrorCode.cluster_authorization_failed,
    "error_message": "cellfeed's gateway is read-only: there are no transactions",
}
_UNKNOWN_KIND: Final[dict[str, Any]] = {
    **_NOWHERE,
    "error_code": ErrorCode.invalid_request,
    "error_message": "a coordinator is that of a group (0) or of a transaction (1)",
}


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    kind = getattr(request, "key_type", _GROUP)
    if head.version < _FIRST_WITH_KEYS:
        return {"throttle_time": 0, **_coordinator(context, kind, request.key, peer)}
    return {
        "throttle_time": 0,
        "coordinators": [
            {"key": key, **_coordinator(context, kind, key, peer)}
            for key in request.coordinator_keys
        ],
    }


def _coordinator(context: GatewayContext, kind: int, group_id: str, peer: Peer) -> dict[str, Any]:
    if kind != _GROUP:
        return _NO_TRANSACTIONS if kind == _TRANSACTION else _UNKNOWN_KIND
    if not context.may(peer, "group", group_id, "describe"):
        return {
            **_NOWHERE,
            "error_code": ErrorCode.group_authorization_failed,
            "error_message": None,
        }
    node_id = context.cluster.coordinator(group_id)
    address = (
        context.cluster.gateways.address(node_id, peer.listener) if node_id is not None else None
    )
    if node_id is None or address is None:
        return {
            **_NOWHERE,
            "error_code": ErrorCode.coordinator_not_available,
            "error_message": "the group is changing hands: try again",
        }
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "node_id": node_id,
        "host": address[0],
        "port": address[1],
    }
