"""Answers to changes of topics, settings and ACLs: nothing of a gateway is changed through Kafka's
protocol. A sentence names the place to change it instead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.context import GatewayContext

TOPICS: Final = (
    "topics here are views of a cellfeed datastore: the gateway's configuration declares them"
)
_ACLS: Final = (
    "users and their rights are given with `cellfeed users`, not through Kafka's protocol"
)
_SETTINGS: Final = (
    "settings here follow from the cellfeed datastore and the gateway's configuration"
)
_TOPIC, _GROUP = 2, 32


def refused_settings(resources: Iterable[Any]) -> list[dict[str, Any]]:
    """The answers to changes of resources' settings."""
    return [
        {
            "error_code": {
                _TOPIC: ErrorCode.topic_authorization_failed,
                _GROUP: ErrorCode.group_authorization_failed,
            }.get(resource.resource_type, ErrorCode.cluster_authorization_failed),
            "error_message": _SETTINGS,
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
        }
        for resource in resources
    ]


def refused_acls(context: GatewayContext, asked: Iterable[Any]) -> list[dict[str, Any]]:
    """The answers to changes of ACLs: SECURITY_DISABLED where there are neither users nor ACLs, as
    that of a broker without an authorizer."""
    error = (
        ErrorCode.security_disabled
        if context.security.is_open
        else ErrorCode.cluster_authorization_failed
    )
    return [{"error_code": error, "error_message": _ACLS} for _ in asked]
