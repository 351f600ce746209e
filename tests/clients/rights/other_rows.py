"""The rows of APIs about users, rights, settings and the gateway itself."""

from __future__ import annotations

from typing import Any, Final

from tests.clients.rights.principals import (
    DESCRIBE_GROUP,
    DESCRIBE_TOPIC,
    GROUP,
    TOPIC,
    USER,
    Principal,
)
from tests.clients.rights.rows import (
    LIST_TOPICS,
    NO_GROUP_RIGHT,
    NO_OPERATIONS,
    NO_TOPIC_RIGHT,
    Row,
    name_of_error,
    only_name,
    refused_rows,
)


def _own_acls(answer: Any, principal: Principal) -> str:
    told = [acl.principal for resource in answer.resources for acl in resource.acls]
    in_kafka = [
        acl
        for acl in principal.acls
        if acl.kind in ("topic", "group") and acl.operation != "operate"
    ]
    assert told == [f"User:{principal.name}"] * len(in_kafka)
    return name_of_error(answer.error_code)


_CONFIGS: Final = {"configuration_keys": None}


_NO_EXPLANATIONS: Final = {"include_synonyms": False, "include_documentation": False}


def _configs(answer: Any, _: Principal) -> str:
    [result] = answer.results
    assert result.error_code.name == "none" or not result.configs
    return name_of_error(result.error_code)


_SETTINGS: Final = {
    "resources": [{"resource_type": 2, "resource_name": TOPIC, "configs": []}],
    "validate_only": True,
}


OTHER_ROWS: Final[dict[int, list[Row]]] = {
    17: [
        Row(
            "too late",
            lambda _: {"mechanism": "PLAIN"},
            lambda answer, _: name_of_error(answer.error_code),
            without="illegal_sasl_state",
        )
    ],
    18: [
        Row(
            "all",
            lambda _: {"client_software_name": "test", "client_software_version": "1"},
            lambda answer, _: name_of_error(answer.error_code),
        )
    ],
    19: refused_rows(
        {
            "topics": [
                {
                    "name": TOPIC,
                    "num_partitions": 1,
                    "replication_factor": 1,
                    "assignments": [],
                    "configs": [],
                }
            ],
            "timeout": 1000,
            "validate_only": True,
        },
        lambda answer: answer.topics[0].error_code,
        "topic_authorization_failed",
    ),
    20: refused_rows(
        {
            "topics": [{"name": TOPIC, "topic_id": None}],
            "topic_names": [TOPIC],
            "timeout": 1000,
        },
        lambda answer: answer.responses[0].error_code,
        "topic_authorization_failed",
    ),
    29: [
        Row(
            "all",
            lambda _: {
                "resource_type_filter": 1,
                "resource_name_filter": None,
                "pattern_type_filter": 1,
                "principal_filter": None,
                "host_filter": None,
                "operation": 1,
                "permission_type": 1,
            },
            _own_acls,
        )
    ],
    30: refused_rows(
        {
            "creations": [
                {
                    "resource_type": 2,
                    "resource_name": TOPIC,
                    "resource_pattern_type": 3,
                    "principal": "User:x",
                    "host": "*",
                    "operation": 3,
                    "permission_type": 3,
                }
            ]
        },
        lambda answer: answer.results[0].error_code,
        "cluster_authorization_failed",
    ),
    31: refused_rows(
        {
            "filters": [
                {
                    "resource_type_filter": 1,
                    "resource_name_filter": None,
                    "pattern_type_filter": 1,
                    "principal_filter": None,
                    "host_filter": None,
                    "operation": 1,
                    "permission_type": 1,
                }
            ]
        },
        lambda answer: answer.filter_results[0].error_code,
        "cluster_authorization_failed",
    ),
    32: [
        Row(
            "a topic",
            lambda _: {
                "resources": [{"resource_type": 2, "resource_name": TOPIC, **_CONFIGS}],
                **_NO_EXPLANATIONS,
            },
            _configs,
            ((DESCRIBE_TOPIC, NO_TOPIC_RIGHT),),
        ),
        Row(
            "a group",
            lambda _: {
                "resources": [{"resource_type": 32, "resource_name": GROUP, **_CONFIGS}],
                **_NO_EXPLANATIONS,
            },
            _configs,
            ((DESCRIBE_GROUP, NO_GROUP_RIGHT),),
        ),
        Row(
            "a gateway",
            lambda _: {
                "resources": [{"resource_type": 4, "resource_name": "", **_CONFIGS}],
                **_NO_EXPLANATIONS,
            },
            _configs,
        ),
    ],
    33: refused_rows(
        _SETTINGS,
        lambda answer: answer.responses[0].error_code,
        "topic_authorization_failed",
    ),
    36: [
        Row(
            "too late",
            lambda _: {"auth_bytes": b""},
            lambda answer, _: name_of_error(answer.error_code),
            without="illegal_sasl_state",
        )
    ],
    37: refused_rows(
        {
            "topics": [{"name": TOPIC, "count": 99, "assignments": None}],
            "timeout": 1000,
            "validate_only": True,
        },
        lambda answer: answer.results[0].error_code,
        "topic_authorization_failed",
    ),
    44: refused_rows(
        _SETTINGS,
        lambda answer: answer.responses[0].error_code,
        "topic_authorization_failed",
    ),
    46: [
        Row(
            "all",
            lambda _: {"timeout": 1000, "topics": None},
            lambda answer, _: name_of_error(answer.error_code),
        )
    ],
    48: [
        Row(
            "all",
            lambda _: {"components": [], "strict": False},
            lambda answer, _: name_of_error(answer.error_code) if not answer.entries else "entries",
        )
    ],
    50: [
        Row(
            "all",
            lambda _: {"users": None},
            lambda answer, _: name_of_error(answer.error_code) if not answer.results else "users",
        ),
        Row(
            "another user",
            lambda _: {"users": [{"name": USER}]},
            lambda answer, _: name_of_error(answer.results[0].error_code),
            without="resource_not_found",
        ),
    ],
    60: [
        Row(
            "all",
            lambda _: {"endpoint_type": 1, "include_fenced_brokers": False, **NO_OPERATIONS},
            lambda answer, _: name_of_error(answer.error_code),
        )
    ],
    74: [
        Row(
            "metrics of clients",
            lambda _: {},
            lambda answer, _: (
                name_of_error(answer.error_code) if not answer.config_resources else "resources"
            ),
            versions=(0, 0),
        ),
        Row(
            "all",
            lambda _: {"resource_types": []},
            lambda answer, principal: only_name(
                [each.resource_name for each in answer.config_resources if each.resource_type == 2],
                TOPIC,
                principal,
            ),
            LIST_TOPICS,
            (1, 1),
        ),
    ],
}
"""Of APIs about users, rights, settings and the gateway itself, by key."""
