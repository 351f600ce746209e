"""SyncGroup (key 14), versions 0–5: the leader hands in the assignment, the others wait for it."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.limits import GROUP_METADATA_BYTES_MAX
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 14
VERSIONS: Final = (0, 5)
_FIRST_WITH_PROTOCOL: Final = 5


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    group = context.groups.get(request.group_id)
    error = context.cluster.group_error(request.group_id)
    if not context.may(peer, "group", request.group_id, "read"):
        error = ErrorCode.group_authorization_failed
    if not request.group_id:
        error = ErrorCode.invalid_group_id
    elif head.version >= _FIRST_WITH_PROTOCOL and None in (
        request.protocol_type,
        request.protocol_name,
    ):
        error = ErrorCode.inconsistent_group_protocol
    if error:
        return {"throttle_time": 0, "error_code": error, "assignment": b""}
    if group is None:
        error = ErrorCode.unknown_member_id
    elif any(len(each.assignment) > GROUP_METADATA_BYTES_MAX for each in request.assignments):
        error = ErrorCode.group_max_size_reached
    elif getattr(request, "protocol_type", None) not in (None, group.protocol_type) or getattr(
        request, "protocol_name", None
    ) not in (
        None,
        group.protocol,
    ):
        error = ErrorCode.inconsistent_group_protocol
    if group is None or error is not ErrorCode.none:
        return {"throttle_time": 0, "error_code": error, "assignment": b""}
    assignments = {each.member_id: bytes(each.assignment) for each in request.assignments}
    instance_id = getattr(request, "group_instance_id", None)
    return {
        "throttle_time": 0,
        **await context.groups.sync(
            group, request.member_id, instance_id, request.generation_id, assignments
        ),
    }
