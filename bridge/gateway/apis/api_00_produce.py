"""Produce (key 0), versions 3–12: advertised, because librdkafka reads nothing from a broker
without it; every write is refused.

Cells are written through the store's own API, which checks and deduplicates them. Each partition of
the request is answered TOPIC_AUTHORIZATION_FAILED with the reason in words, which every producer
reports at once instead of retrying. A producer that wants no answer (acks 0) loses its connection,
as Kafka does for errors.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.frame_check import MalformedFrame
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 0
VERSIONS: Final = (3, 12)
_REASON: Final = (
    "this topic is a view of a cellfeed datastore: put cells through its HTTP API or client, not"
    " with a Kafka producer"
)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del context, head, peer
    if request.acks == 0:
        raise MalformedFrame("a producer with acks=0 cannot learn that writes are refused")
    return {
        "throttle_time": 0,
        "responses": [
            {
                "name": topic.name,
                "partition_responses": [
                    _refused(partition.index) for partition in topic.partition_data
                ],
            }
            for topic in request.topic_data
        ],
    }


def _refused(partition: int) -> dict[str, Any]:
    return {
        "index": partition,
        "error_code": ErrorCode.topic_authorization_failed,
        "base_offset": -1,
        "log_append_time": None,
        "record_errors": [],
        "error_message": _REASON,
    }
