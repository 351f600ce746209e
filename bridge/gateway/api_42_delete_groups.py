"""DeleteGroups (key 42), versions 0–2: forgets the offsets of groups without members. NON_EMPTY_GROUP for one with members, GROUP_ID_NOT_FOUND for an
unknown one."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from bridge.gateway.context import GatewayContext, Peer
from bridge.gateway.protocol import RequestHead

KEY: Final = 42
VERSIONS: Final = (0, 2)


async def handle(context: GatewayContext, request: Any, head: RequestHead, peer: Peer) -> dict[str, Any]:
    del head, peer
    return {"throttle_time": 0, "results": [{"group_id": name, "error_code": await _delete(context, name)} for name in request.groups_names]}


async def _delete(context: GatewayContext, group_id: str) -> ErrorCode:
    async with context.groups.offsets_lock(group_id):
        if context.groups.get(group_id) is not None:
            return ErrorCode.non_empty_group
        if not await context.in_thread(context.offsets.fetch_offsets, group_id):
            return ErrorCode.group_id_not_found
        await context.in_thread(context.offsets.delete_offsets, group_id)
    return ErrorCode.none
