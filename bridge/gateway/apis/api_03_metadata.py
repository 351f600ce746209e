"""Metadata (key 3), versions 0–13: the living gateways, and the topics with one partition per
shard.

Addresses are those of the listener that the client came in through. Every gateway can serve every
partition: leaders only spread the clients, and all gateways are replicas in sync.

A list of all topics leaves out those ``@latest``; a request by name gets them. Topic ids follow
from the names. Unknown names are UNKNOWN_TOPIC_OR_PARTITION (nothing is ever created by asking),
illegal ones INVALID_TOPIC_EXCEPTION, unknown ids UNKNOWN_TOPIC_ID. Authorised operations are not
computed: the field says "not asked for" (-2**31).
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.topics.topics import LATEST, Topic, legal_topic_name
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 3
VERSIONS: Final = (0, 13)
NO_AUTHORIZED_OPERATIONS: Final = -(1 << 31)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    brokers = context.cluster.brokers(peer.listener)
    nodes = [each.node_id for each in brokers]
    # All topics: no list from version 1 on, an empty one in version 0.
    if request.topics is None or (head.version == 0 and not request.topics):
        await context.in_thread(context.topics.refresh)
        topics = [
            _known(context, topic, nodes)
            for topic in context.topics.all()
            if context.may(peer, "topic", topic.name, "describe")
        ]
    else:
        named = await context.topics_named(
            asked.name for asked in request.topics if asked.name is not None
        )
        identified = await context.topics_identified(
            asked.topic_id for asked in request.topics if asked.name is None
        )
        by_name, by_id = iter(named), iter(identified)
        topics = [
            _asked(context, peer, asked, nodes, next(by_id if asked.name is None else by_name))
            for asked in request.topics
        ]
    return {
        "throttle_time": 0,
        "brokers": [
            {"node_id": each.node_id, "host": each.host, "port": each.port, "rack": None}
            for each in brokers
        ],
        "cluster_id": context.cluster_id,
        "controller_id": context.cluster.controller_id,
        "topics": topics,
        "cluster_authorized_operations": NO_AUTHORIZED_OPERATIONS,
        "error_code": ErrorCode.none,
    }


def _asked(
    context: GatewayContext, peer: Peer, asked: Any, nodes: list[int], topic: Topic | None
) -> dict[str, Any]:
    if asked.name is not None and not context.may(peer, "topic", asked.name, "describe"):
        return _unknown(asked.name, None, ErrorCode.topic_authorization_failed)
    if context.topic_refused(peer, topic, "describe"):
        topic = None
    if topic is not None:
        return _known(context, topic, nodes)
    if asked.name is None:
        return _unknown(None, asked.topic_id, ErrorCode.unknown_topic_id)
    error = (
        ErrorCode.unknown_topic_or_partition
        if legal_topic_name(asked.name.removesuffix(LATEST))
        else ErrorCode.invalid_topic_exception
    )
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


def _known(context: GatewayContext, topic: Topic, nodes: list[int]) -> dict[str, Any]:
    partitions = [
        {
            "error_code": ErrorCode.none,
            "partition_index": shard,
            "leader_id": context.cluster.leader(shard),
            "leader_epoch": context.heads[shard].leader_epoch,
            "replica_nodes": nodes,
            "isr_nodes": nodes,
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
