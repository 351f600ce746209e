"""DescribeAcls (key 29), versions 1–3: the rights of the user that asks, in Kafka's terms. ACLs are
made and taken back with ``cellfeed users``, not from here.

With neither users nor ACLs the answer is SECURITY_DISABLED, as that of a broker without an
authorizer: tools then leave their page of ACLs out. Otherwise a broker shows all ACLs to users with
the right to describe the cluster; here nobody has it, and each is shown its own: the rights of
others stay unnamed.

A pattern ``tri*`` is a prefixed one, ``tri``; a single ``*`` is Kafka's wildcard; every other one
is literal. Rights that Kafka has no name for (on datastores and columns) are left out. A filter on
a value that Kafka does not have (UNKNOWN) fits nothing.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead
from cellfeed.store.security.rights import Acl

KEY: Final = 29
VERSIONS: Final = (1, 3)
_ANY: Final = 1
"""Of every kind of filter: any value."""
_MATCH, _LITERAL, _PREFIXED = 2, 3, 4
_RESOURCE_TYPES: Final = {"topic": 2, "group": 3}
_OPERATIONS: Final = {"read": 3, "delete": 6, "describe": 8}
_PERMISSIONS: Final = {"deny": 2, "allow": 3}
_ALL_HOSTS: Final = "*"
_WILDCARD: Final = "*"


class _Resource(NamedTuple):
    resource_type: int
    resource_name: str
    pattern_type: int


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del head
    if context.security.is_open:
        message = "there are neither users nor ACLs here"
        return {
            "throttle_time": 0,
            "error_code": ErrorCode.security_disabled,
            "error_message": message,
            "resources": [],
        }
    resources: dict[_Resource, list[dict[str, Any]]] = {}
    for acl in context.security.acls_of(peer.principal):
        if acl.kind not in _RESOURCE_TYPES or acl.operation not in _OPERATIONS:
            continue
        permission = _PERMISSIONS[acl.effect]
        resource, operation, principal = (
            resource_of(acl),
            _OPERATIONS[acl.operation],
            f"User:{acl.principal}",
        )
        if (
            _fits_resource(request, resource)
            and request.principal_filter in (None, principal)
            and request.host_filter in (None, _ALL_HOSTS)
            and request.operation in (_ANY, operation)
            and request.permission_type in (_ANY, permission)
        ):
            bindings = {
                "principal": principal,
                "host": _ALL_HOSTS,
                "operation": operation,
                "permission_type": permission,
            }
            resources.setdefault(resource, []).append(bindings)
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.none,
        "error_message": None,
        "resources": [
            {**resource._asdict(), "acls": acls} for resource, acls in sorted(resources.items())
        ],
    }


def resource_of(acl: Acl) -> _Resource:
    """The resource of an ACL, in Kafka's terms."""
    kind = _RESOURCE_TYPES[acl.kind]
    if acl.pattern == _WILDCARD:
        return _Resource(kind, _WILDCARD, _LITERAL)
    if acl.pattern.endswith("*"):
        return _Resource(kind, acl.pattern[:-1], _PREFIXED)
    return _Resource(kind, acl.pattern, _LITERAL)


def _fits_resource(request: Any, resource: _Resource) -> bool:
    if request.resource_type_filter not in (_ANY, resource.resource_type):
        return False
    name = request.resource_name_filter
    if request.pattern_type_filter == _MATCH:  # all that concern the name, however they say it
        is_prefix = resource.pattern_type == _PREFIXED
        return (
            name is None
            or resource.resource_name in (name, _WILDCARD)
            or (is_prefix and name.startswith(resource.resource_name))
        )
    return request.pattern_type_filter in (_ANY, resource.pattern_type) and name in (
        None,
        resource.resource_name,
    )
