"""DescribeGroups (key 15), versions 0–6: state and members. A group with offsets but no members is
Empty, one with neither Dead (version 6: GROUP_ID_NOT_FOUND)."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.api_03_metadata import NO_AUTHORIZED_OPERATIONS
from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.groups.group import Group
from cellfeed.bridge.gateway.groups.members import Member
from cellfeed.bridge.gateway.groups.rebalances import State
from cellfeed.bridge.gateway.wire.protocol import RequestHead
from cellfeed.store.errors import Unavailable

KEY: Final = 15
VERSIONS: Final = (0, 6)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    return {
        "throttle_time": 0,
        "groups": [
            await _described(context, peer, group_id, head.version) for group_id in request.groups
        ],
    }


async def _described(
    context: GatewayContext, peer: Peer, group_id: str, version: int
) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "error_code": ErrorCode.none,
        "error_message": None,
        "group_id": group_id,
        "group_state": "Empty",
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
        "authorized_operations": NO_AUTHORIZED_OPERATIONS,
    }
    if not context.may(peer, "group", group_id, "describe"):
        return {**answer, "error_code": ErrorCode.group_authorization_failed, "group_state": ""}
    if error := context.cluster.group_error(group_id):
        return {**answer, "error_code": error, "group_state": ""}
    group = context.groups.get(group_id)
    if group is not None:
        members = [_member(group, member) for member in group.members.values()]
        return {
            **answer,
            "group_state": group.state.value,
            "protocol_type": group.protocol_type,
            "protocol_data": group.protocol,
            "members": members,
        }
    if context.groups.is_awaited(group_id):
        # Its members are about to join again after the group changed hands.
        return {**answer, "group_state": State.PREPARING.value, "protocol_type": "consumer"}
    try:
        if await context.in_coordination(context.offsets.fetch_offsets, group_id):
            return answer
    except Unavailable:
        return {**answer, "error_code": ErrorCode.coordinator_not_available, "group_state": ""}
    missing = (
        {
            "error_code": ErrorCode.group_id_not_found,
            "error_message": f"Group {group_id} not found.",
        }
        if version >= 6
        else {}
    )
    return {**answer, **missing, "group_state": "Dead"}


def _member(group: Group, member: Member) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.request.instance_id,
        "client_id": member.request.client_id,
        "client_host": f"/{member.request.client_host}",
        "member_metadata": member.metadata(group.protocol),
        "member_assignment": member.assignment,
    }
