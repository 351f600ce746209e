"""ListGroups (key 16), versions 0–5: the groups that this gateway coordinates, with members or only
with offsets, filtered by state (version 4) and type (version 5). Clients ask each broker."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead
from cellfeed.store.errors import Unavailable

KEY: Final = 16
VERSIONS: Final = (0, 5)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del head
    try:
        with_offsets = await context.in_coordination(context.offsets.groups)
    except Unavailable:
        return {"throttle_time": 0, "error_code": ErrorCode.coordinator_not_available, "groups": []}
    groups = {
        group_id: {
            "group_id": group_id,
            "protocol_type": "",
            "group_state": "Empty",
            "group_type": "classic",
        }
        for group_id in with_offsets
        if context.cluster.coordinates(group_id)
    }
    for group in context.groups.all():
        groups[group.group_id] = {
            "group_id": group.group_id,
            "protocol_type": group.protocol_type,
            "group_state": group.state.value,
            "group_type": "classic",
        }
    states = {state.lower() for state in getattr(request, "states_filter", ())}
    types = {kind.lower() for kind in getattr(request, "types_filter", ())}
    listed = [
        group
        for group_id, group in sorted(groups.items())
        if context.may(peer, "group", group_id, "describe")
        and (not states or group["group_state"].lower() in states)
        and (not types or group["group_type"] in types)
    ]
    return {"throttle_time": 0, "error_code": ErrorCode.none, "groups": listed}
