"""DeleteGroups (key 42), versions 0–2: forgets the offsets of groups without members.
NON_EMPTY_GROUP for one with members, GROUP_ID_NOT_FOUND for an unknown one. As a commit, it carries
the fence of the group's coordinator."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.coordinator_errors import coordinator_error
from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead
from cellfeed.store.errors import StaleWriter, Unavailable

KEY: Final = 42
VERSIONS: Final = (0, 2)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del head
    return {
        "throttle_time": 0,
        "results": [
            {"group_id": name, "error_code": await _delete(context, peer, name)}
            for name in request.groups_names
        ],
    }


async def _delete(context: GatewayContext, peer: Peer, group_id: str) -> ErrorCode:
    if not context.may(peer, "group", group_id, "delete"):
        return ErrorCode.group_authorization_failed
    if context.cluster.refuses(group_id):
        return ErrorCode.invalid_group_id
    async with context.groups.offsets_lock(group_id):
        if error := context.cluster.group_error(group_id):
            return error
        claim = context.cluster.claim(group_id)
        if context.groups.get(group_id) is not None or context.groups.is_awaited(group_id):
            return ErrorCode.non_empty_group
        try:
            if not await context.in_coordination(context.offsets.fetch_offsets, group_id):
                return ErrorCode.group_id_not_found
            await context.in_coordination(context.offsets.delete_offsets, group_id, claims=[claim])
        except (StaleWriter, Unavailable) as failed:
            return coordinator_error(failed)
    return ErrorCode.none
