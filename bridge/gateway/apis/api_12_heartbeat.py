"""Heartbeat (key 12), versions 0–4: keeps a member's session; REBALANCE_IN_PROGRESS makes it join
again."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 12
VERSIONS: Final = (0, 4)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del head
    if not request.group_id:
        return {"throttle_time": 0, "error_code": ErrorCode.invalid_group_id}
    if not context.may(peer, "group", request.group_id, "read"):
        return {"throttle_time": 0, "error_code": ErrorCode.group_authorization_failed}
    if error := context.cluster.heartbeat_error(request.group_id):
        return {"throttle_time": 0, "error_code": error}
    group = context.groups.get(request.group_id)
    if group is None:
        return {"throttle_time": 0, "error_code": ErrorCode.unknown_member_id}
    error = context.groups.heartbeat(
        group, request.member_id, getattr(request, "group_instance_id", None), request.generation_id
    )
    return {"throttle_time": 0, "error_code": error}
