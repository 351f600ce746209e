"""DescribeUserScramCredentials (key 50), version 0: with which SCRAM mechanisms, and how many
iterations, a user may authenticate. Users are made with ``cellfeed users``, not from here.

A broker shows all users to one with the right to describe the cluster; here nobody has it, and each
is shown itself: of another user the answer is the same as of one that is not there. A user that is
named twice in a request is DUPLICATE_RESOURCE, as with a broker.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead
from cellfeed.store.security.access import Security

KEY: Final = 50
VERSIONS: Final = (0, 0)
_MECHANISMS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del head
    visible = {peer.principal} if context.security.exists(peer.principal) else set()
    asked = Counter(user.name for user in request.users or ())
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.none,
        "error_message": None,
        "results": [
            _result(context.security, name, is_visible=name in visible, is_twice=asked[name] > 1)
            for name in sorted(asked or visible)
        ],
    }


def _result(security: Security, name: str, *, is_visible: bool, is_twice: bool) -> dict[str, Any]:
    if is_twice:
        return {
            "user": name,
            "error_code": ErrorCode.duplicate_resource,
            "error_message": f"user {name!r} is named twice",
            "credential_infos": [],
        }
    if not is_visible:
        return {
            "user": name,
            "error_code": ErrorCode.resource_not_found,
            "error_message": f"no user {name!r} that you may see",
            "credential_infos": [],
        }
    credentials = [
        {"mechanism": number, "iterations": security.credential(mechanism, name).iterations}
        for mechanism, number in _MECHANISMS.items()
    ]
    return {
        "user": name,
        "error_code": ErrorCode.none,
        "error_message": None,
        "credential_infos": credentials,
    }
