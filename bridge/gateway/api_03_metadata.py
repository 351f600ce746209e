"""Metadata (key 3), versions 0–13: this gateway as the only broker, and the topics with one partition per shard.

Topic ids follow from the names. Unknown names are UNKNOWN_TOPIC_OR_PARTITION (nothing is ever created by asking), illegal ones
INVALID_TOPIC_EXCEPTION, unknown ids UNKNOWN_TOPIC_ID. Authorised operations are not computed: the field says "not asked for" (-2**31).
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from bridge.gateway.context import GatewayContext, Peer
from bridge.gateway.protocol import RequestHead
from bridge.gateway.topics import Topic, legal_topic_name

KEY: Final = 3
VERSIONS: Final = (0, 13)
NO_AUTHORIZED_OPERATIONS: Final = -(1 << 31)


async def handle(context: GatewayContext, request: Any, head: RequestHead, peer: Peer) -> dict[str, Any]:
    del peer
    # All topics: no list from version 1 on, an empty one in version 0.
    if request.topics is None or (head.version == 0 and not request.topics):
        await context.in_thread(context.topics.refresh)
        topics = [_known(context, topic) for topic in context.topics.all()]
    else:
        named = await context.topics_named(asked.name for asked in request.topics if asked.name is not None)
        identified = await context.topics_identified(asked.topic_id for asked in request.topics if asked.name is None)
        by_name, by_id = iter(named), iter(identified)
        topics = [_asked(context, asked, next(by_id if asked.name is None else by_name)) for asked in request.topics]
    return {
        "throttle_time": 0,
        "brokers": [{"node_id": context.node_id, "host": context.advertised_host, "port": context.advertised_port, "rack": None}],
        "cluster_id": context.cluster_id,
        "controller_id": context.node_id,
        "topics": topics,
        "cluster_authorized_operations": NO_AUTHORIZED_OPERATIONS,
        "error_code": ErrorCode.none,
    }


def _asked(context: GatewayContext, asked: Any, topic: Topic | None) -> dict[str, Any]:
    if topic is not None:
        return _known(context, topic)
    if asked.name is None:
        return _unknown(None, asked.topic_id, ErrorCode.unknown_topic_id)
    error = ErrorCode.unknown_topic_or_partition if legal_topic_name(asked.name) else ErrorCode.invalid_topic_exception
    return _unknown(asked.name, None, error)


def _unknown(name: str | None, topic_id: Any, error: ErrorCode) -> dict[str, Any]:
    return {
        "error_code": error,
        "name": name,
        "topic_id": topic_id,
        "is_internal": False,
        "partitions": [],
        "topic_authorized_operations": NO_AUTHORIZED_OPERATIONS,
    }


def _known(context: GatewayContext, topic: Topic) -> dict[str, Any]:
    node = context.node_id
    partitions = [
        {
            "error_code": ErrorCode.none,
            "partition_index": shard,
            "leader_id": node,
            "leader_epoch": context.heads[shard].leader_epoch,
            "replica_nodes": [node],
            "isr_nodes": [node],
            "offline_replicas": [],
        }
        for shard in range(context.engine.shards)
    ]
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": False,
        "partitions": partitions,
        "topic_authorized_operations": NO_AUTHORIZED_OPERATIONS,
    }
