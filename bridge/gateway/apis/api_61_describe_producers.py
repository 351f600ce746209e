"""DescribeProducers (key 61), version 0: a partition has no producers here. Cells are put through
HTTP, and no record has a producer id.

A partition is answered for by whichever gateway is asked, its leader or another one: there is
nothing that only the leader knows.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.topics.topics import Topic, legal_topic_name
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 61
VERSIONS: Final = (0, 0)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del head
    topics = await context.topics_named(asked.name for asked in request.topics)
    return {
        "throttle_time": 0,
        "topics": [
            {
                "name": asked.name,
                "partitions": [
                    _partition(_error(context, peer, asked.name, topic, each), each)
                    for each in asked.partition_indexes
                ],
            }
            for asked, topic in zip(request.topics, topics, strict=True)
        ],
    }


def _error(
    context: GatewayContext, peer: Peer, name: str, topic: Topic | None, partition: int
) -> ErrorCode:
    if not context.may(peer, "topic", name, "read"):
        return ErrorCode.topic_authorization_failed
    if topic is None and not legal_topic_name(name):
        return ErrorCode.invalid_topic_exception
    return context.partition_error(topic, partition)


def _partition(error: ErrorCode, partition: int) -> dict[str, Any]:
    return {
        "partition_index": partition,
        "error_code": error,
        "error_message": None,
        "active_producers": [],
    }
