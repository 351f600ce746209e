"""Metadata (key 3), versions 0–13: the living gateways, and the topics with one partition per
shard.

Addresses are those of the listener that the client came in through. Every gateway can serve every
partition: leaders only spread the clients, and all gateways are replicas in sync.

A list of all topics leaves out those ``@latest``; a request by name gets them. Topic ids follow
from the names. Unknown names are UNKNOWN_TOPIC_OR_PARTITION (nothing is ever created by asking),
illegal ones INVALID_TOPIC_EXCEPTION, unknown ids UNKNOWN_TOPIC_ID. Authorised operations are not
computed: the field says "not asked for" (-2**31). Partitions are prepared once, for all topics
(:mod:`cellfeed.bridge.gateway.wire.metadata_answer`).
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.topics.topics import LATEST, Topic, legal_topic_name
from cellfeed.bridge.gateway.wire.metadata_answer import write_metadata
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 3
VERSIONS: Final = (0, 13)
NO_AUTHORIZED_OPERATIONS: Final = -(1 << 31)

_Described = tuple[dict[str, Any], list[bytes]]
"""A topic and its partitions."""


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> list[bytes]:
    brokers = context.cluster.gateways.brokers(peer.listener)
    partitions = context.metadata_partitions.of(
        head.version,
        context.cluster.gateways.leaders,
        [each.node_id for each in brokers],
        context.heads.epoch_changes,
        lambda shard: context.heads[shard].leader_epoch,
    )
    # All topics: no list from version 1 on, an empty one in version 0.
    if request.topics is None or (head.version == 0 and not request.topics):
        await context.in_thread(context.topics.refresh)
        topics = [
            (_known(topic), partitions)
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
            _asked(context, peer, asked, partitions, next(by_id if asked.name is None else by_name))
            for asked in request.topics
        ]
    answer = {
        "throttle_time": 0,
        "brokers": [
            {"node_id": each.node_id, "host": each.host, "port": each.port, "rack": None}
            for each in brokers
        ],
        "cluster_id": context.cluster_id,
        "controller_id": context.cluster.gateways.controller_id,
        "cluster_authorized_operations": NO_AUTHORIZED_OPERATIONS,
        "error_code": ErrorCode.none,
    }
    return [write_metadata(head, answer, topics)]


def _asked(
    context: GatewayContext,
    peer: Peer,
    asked: Any,
    partitions: list[bytes],
    topic: Topic | None,
) -> _Described:
    if asked.name is not None and not context.may(peer, "topic", asked.name, "describe"):
        return _unknown(asked.name, None, ErrorCode.topic_authorization_failed)
    if context.topic_refused(peer, topic, "describe"):
        topic = None
    if topic is not None:
        return _known(topic), partitions
    if asked.name is None:
        return _unknown(None, asked.topic_id, ErrorCode.unknown_topic_id)
    error = (
        ErrorCode.unknown_topic_or_partition
        if legal_topic_name(asked.name.removesuffix(LATEST))
        else ErrorCode.invalid_topic_exception
    )
    return _unknown(asked.name, None, error)


def _unknown(name: str | None, topic_id: Any, error: ErrorCode) -> _Described:
    return _topic(name, topic_id, error), []


def _known(topic: Topic) -> dict[str, Any]:
    return _topic(topic.name, topic.topic_id, ErrorCode.none)


def _topic(name: str | None, topic_id: Any, error: ErrorCode) -> dict[str, Any]:
    return {
        "error_code": error,
        "name": name,
        "topic_id": topic_id,
        "is_internal": False,
        "topic_authorized_operations": NO_AUTHORIZED_OPERATIONS,
    }
