"""ListConfigResources (key 74), versions 0–1: the resources that DescribeConfigs can be asked
about: topics and gateways. Version 0 asks for subscriptions to metrics of clients; there are none.

The list has the topics that the asking user may describe. Groups have no settings here, and loggers
cannot be set from outside: no resource of those kinds is listed. UNSUPPORTED_VERSION for a kind
that Kafka does not have.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 74
VERSIONS: Final = (0, 1)
_TOPIC, _BROKER, _LOGGER, _CLIENT_METRICS, _GROUP = 2, 4, 8, 16, 32
_KINDS: Final = frozenset((_TOPIC, _BROKER, _LOGGER, _CLIENT_METRICS, _GROUP))


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    asked = (
        frozenset((_CLIENT_METRICS,))
        if head.version == 0
        else frozenset(request.resource_types) or _KINDS
    )
    if not asked <= _KINDS:
        return {
            "throttle_time": 0,
            "error_code": ErrorCode.unsupported_version,
            "config_resources": [],
        }
    resources: list[dict[str, Any]] = []
    if _TOPIC in asked:
        await context.in_thread(context.topics.refresh)
        names = sorted(
            topic.name
            for topic in context.topics.all()
            if context.may(peer, "topic", topic.name, "describe")
        )
        resources += [{"resource_name": name, "resource_type": _TOPIC} for name in names]
    if _BROKER in asked:
        resources += [
            {"resource_name": str(each.node_id), "resource_type": _BROKER}
            for each in context.cluster.gateways.brokers(peer.listener)
        ]
    return {"throttle_time": 0, "error_code": ErrorCode.none, "config_resources": resources}
