"""DescribeConfigs (key 32), versions 1–4: the settings that hold for a topic here, in Kafka's own
names; and the broker's advertised address. Groups have no settings here: of each the list is empty.

A topic's log is never deleted or compacted and takes no writes: a broker's defaults do not count. A
topic that shows only the newest cell of each row and column at first says ``compact``: a tool must
not take it for all that was ever written. It differs from Kafka's compaction in two ways. The
newest cell has the highest ref key; it need not be the last in the log. It is the newest of a row
and column, where the record's key is the row alone.

A topic's settings are not read-only, as those of a broker for a user without the right to change
them: AlterConfigs refuses. MirrorMaker carries over settings that are not read-only,
``retention.ms=-1`` above all; without it a mirror deletes old history after a week.

Settings that differ from Kafka's own defaults are reported as set for the topic, the rest as
defaults: tools show set ones (``kafka-configs.sh``, Kafdrop), or mark them.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.limits import FRAME_BYTES_MAX
from cellfeed.bridge.gateway.topics.topics import Topic, legal_topic_name
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 32
VERSIONS: Final = (1, 4)
_TOPIC, _BROKER, _GROUP = 2, 4, 32
_OF_THE_TOPIC, _OF_THE_BROKER, _DEFAULT = 1, 4, 5
"""Where a setting comes from."""
_STRING, _LONG, _LIST = 2, 5, 7
_PROTOCOLS: Final = {
    "plaintext": "PLAINTEXT",
    "tls": "SSL",
    "sasl_plaintext": "SASL_PLAINTEXT",
    "sasl_tls": "SASL_SSL",
}
_TOPIC_CONFIGS: Final = {
    "cleanup.policy": ("delete", _LIST),
    "compression.type": ("producer", _STRING),
    "message.timestamp.type": ("CreateTime", _STRING),
    "retention.bytes": ("-1", _LONG),
    "retention.ms": ("-1", _LONG),
}
_DEFAULTS_OF_KAFKA: Final = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
}


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del head
    topics = await context.topics_named(resource.resource_name for resource in request.resources)
    return {
        "throttle_time": 0,
        "results": [
            _result(context, peer, resource, topic)
            for resource, topic in zip(request.resources, topics, strict=True)
        ],
    }


def _result(
    context: GatewayContext, peer: Peer, resource: Any, topic: Topic | None
) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "error_code": ErrorCode.none,
        "error_message": None,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": [],
    }
    if resource.resource_type == _TOPIC and not context.may(
        peer, "topic", resource.resource_name, "describe"
    ):
        return {**answer, "error_code": ErrorCode.topic_authorization_failed}
    if resource.resource_type == _TOPIC:
        if topic is None:
            error = (
                ErrorCode.unknown_topic_or_partition
                if legal_topic_name(resource.resource_name)
                else ErrorCode.invalid_topic_exception
            )
            return {
                **answer,
                "error_code": error,
                "error_message": f"no topic {resource.resource_name}",
            }
        configs = (
            {**_TOPIC_CONFIGS, "cleanup.policy": ("compact", _LIST)}
            if topic.latest
            else _TOPIC_CONFIGS
        )
        if topic.compression is not None:
            configs = {**configs, "compression.type": (topic.compression.name, _STRING)}
    elif resource.resource_type == _BROKER and resource.resource_name in (
        "",
        str(context.cluster.node_id),
    ):
        host, port = context.cluster.gateways.address(context.cluster.node_id, peer.listener) or (
            "",
            0,
        )
        # Of the peer's own listener: the others may be none of its business.
        protection = context.protections.get(peer.listener, "plaintext")
        address = f"{_PROTOCOLS[protection]}://{host}:{port}"
        configs = {
            "advertised.listeners": (address, _STRING),
            "socket.request.max.bytes": (str(FRAME_BYTES_MAX), _LONG),
        }
    elif resource.resource_type == _GROUP and resource.resource_name:
        refused = not context.may(peer, "group", resource.resource_name, "describe")
        return {
            **answer,
            "error_code": ErrorCode.group_authorization_failed if refused else ErrorCode.none,
        }
    else:
        return {
            **answer,
            "error_code": ErrorCode.invalid_request,
            "error_message": (
                f"no resource of type {resource.resource_type} {resource.resource_name!r}"
            ),
        }
    keys = resource.configuration_keys
    described = [
        _config(name, value, kind, _source(resource.resource_type, name, value))
        for name, (value, kind) in configs.items()
        if keys is None or name in keys
    ]
    return {**answer, "configs": described}


def _source(resource_type: int, name: str, value: str) -> int:
    if resource_type == _BROKER:
        return _OF_THE_BROKER
    return _DEFAULT if _DEFAULTS_OF_KAFKA[name] == value else _OF_THE_TOPIC


def _config(name: str, value: str, kind: int, source: int) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "read_only": source == _OF_THE_BROKER,
        "config_source": source,
        "is_sensitive": False,
        "synonyms": [],
        "config_type": kind,
        "documentation": None,
    }
