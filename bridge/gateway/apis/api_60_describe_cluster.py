"""DescribeCluster (key 60), versions 0–2: the living gateways. Controllers (endpoint type 2) do not
exist here."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.api_03_metadata import NO_AUTHORIZED_OPERATIONS
from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 60
VERSIONS: Final = (0, 2)
_BROKERS: Final = 1


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del head
    endpoint = getattr(request, "endpoint_type", _BROKERS)
    brokers = [
        {
            "broker_id": each.node_id,
            "host": each.host,
            "port": each.port,
            "rack": None,
            "is_fenced": False,
        }
        for each in context.cluster.gateways.brokers(peer.listener)
    ]
    known = endpoint == _BROKERS
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.none if known else ErrorCode.unsupported_endpoint_type,
        "error_message": None if known else "only brokers are listed here",
        "endpoint_type": endpoint,
        "cluster_id": context.cluster_id,
        "controller_id": context.cluster.gateways.controller_id,
        "brokers": brokers if known else [],
        "cluster_authorized_operations": NO_AUTHORIZED_OPERATIONS,
    }
