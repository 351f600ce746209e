"""LeaveGroup (key 13), versions 0–5: one member, or from version 3 on several, each with its own
answer; a static member may be named by its instance id alone."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 13
VERSIONS: Final = (0, 5)
_FIRST_WITH_MEMBERS: Final = 3


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    if not request.group_id:
        return {"throttle_time": 0, "error_code": ErrorCode.invalid_group_id, "members": []}
    if not context.may(peer, "group", request.group_id, "read"):
        return {
            "throttle_time": 0,
            "error_code": ErrorCode.group_authorization_failed,
            "members": [],
        }
    if error := context.cluster.heartbeat_error(request.group_id):
        return {"throttle_time": 0, "error_code": error, "members": []}
    if head.version < _FIRST_WITH_MEMBERS:
        return {
            "throttle_time": 0,
            "error_code": _leave(context, request.group_id, request.member_id, None),
        }
    members = [
        {
            "member_id": member.member_id,
            "group_instance_id": member.group_instance_id,
            "error_code": _leave(
                context, request.group_id, member.member_id, member.group_instance_id
            ),
        }
        for member in request.members
    ]
    return {"throttle_time": 0, "error_code": ErrorCode.none, "members": members}


def _leave(
    context: GatewayContext, group_id: str, member_id: str, instance_id: str | None
) -> ErrorCode:
    group = context.groups.get(group_id)
    return (
        ErrorCode.unknown_member_id
        if group is None
        else context.groups.leave(group, member_id, instance_id)
    )
