"""InitProducerId (key 22), versions 0–5: an id for every producer without transactions. Frameworks
ask for one at their start although they may never write (Quix Streams, Kafka Streams); writes stay
refused (:mod:`cellfeed.bridge.gateway.apis.api_00_produce`).

A transactional producer is refused. CLUSTER_AUTHORIZATION_FAILED is fatal in each, so it says so at
once. As a broker, a gateway gives a new id to a producer that names its old one. An id is drawn at
random: nothing is written under it, so nothing depends on it.
"""

from __future__ import annotations

from secrets import randbits
from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 22
VERSIONS: Final = (0, 5)
_ID_BITS: Final = 53
"""So many does every language's number hold, JavaScript's too."""


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del context, head, peer
    if request.transactional_id is not None:
        return {
            "throttle_time": 0,
            "error_code": ErrorCode.cluster_authorization_failed,
            "producer_id": -1,
            "producer_epoch": -1,
        }
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.none,
        "producer_id": randbits(_ID_BITS),
        "producer_epoch": 0,
    }
