"""JoinGroup (key 11), versions 0–9. The rules are the state machine's
(:mod:`cellfeed.bridge.gateway.groups.group`); the request waits until the rebalance completes."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.groups.members import JoinRequest
from cellfeed.bridge.gateway.limits import (
    GROUP_ID_BYTES_MAX,
    GROUP_METADATA_BYTES_MAX,
    SESSION_TIMEOUT_MAX_S,
    SESSION_TIMEOUT_MIN_S,
)
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 11
VERSIONS: Final = (0, 9)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    refused: dict[str, Any] = {
        "throttle_time": 0,
        "protocol_name": None,
        "leader": "",
        "member_id": request.member_id,
        "members": [],
    }
    if not request.group_id or len(request.group_id.encode()) > GROUP_ID_BYTES_MAX:
        return {**refused, "error_code": ErrorCode.invalid_group_id}
    if not context.may(peer, "group", request.group_id, "read"):
        return {**refused, "error_code": ErrorCode.group_authorization_failed}
    if context.cluster.refuses(request.group_id):
        return {**refused, "error_code": ErrorCode.invalid_group_id}
    if sum(len(protocol.metadata) for protocol in request.protocols) > GROUP_METADATA_BYTES_MAX:
        return {**refused, "error_code": ErrorCode.group_max_size_reached}
    session_timeout_s = request.session_timeout.total_seconds()
    if not SESSION_TIMEOUT_MIN_S <= session_timeout_s <= SESSION_TIMEOUT_MAX_S:
        return {**refused, "error_code": ErrorCode.invalid_session_timeout}
    if error := await context.active_groups.expect_member(request.group_id, session_timeout_s):
        return {**refused, "error_code": error}
    rebalance = getattr(request, "rebalance_timeout", None)
    join = JoinRequest(
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        client_id=peer.client_id,
        client_host=peer.host,
        session_timeout_s=session_timeout_s,
        rebalance_timeout_s=max(rebalance.total_seconds(), 0.0)
        if rebalance is not None
        else session_timeout_s,
        protocol_type=request.protocol_type,
        protocols=tuple(
            (protocol.name, bytes(protocol.metadata)) for protocol in request.protocols
        ),
        version=head.version,
    )
    return {"throttle_time": 0, **await context.groups.join(request.group_id, join)}
