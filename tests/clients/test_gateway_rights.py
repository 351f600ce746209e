"""The matrix of rights: every API of the gateway, in every version that it advertises, asked by
principals with every set of rights.

``ROWS`` says for each API which rights it asks for, in which order, and the answer without each. An
API, or a version, without a row fails. Requests go as frames through the gateway's own parser,
handler and writer; only the socket is left out, so that a principal costs nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, NamedTuple

import pytest

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.gateway.apis import api_01_fetch
from cellfeed.bridge.gateway.apis.advertised import APIS, FLEXIBLE_FROM
from cellfeed.bridge.gateway.config import GatewayConfig
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.security.users import (
    OPERATIONS,
    Acl,
    Security,
    allow,
    list_users,
    put_user,
)
from cellfeed.bridge.gateway.server import Gateway
from cellfeed.bridge.gateway.wire.fetch_request import read_fetch
from cellfeed.bridge.gateway.wire.protocol import read_head, read_request, write_response
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.engine import StateTable
from tests.support.raw_requests import decoded, encoded, head_bytes
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("gateway rights")]

TOPIC, OTHER_TOPIC, NO_TOPIC = "trips", "trips.BASE", "spirt"
GROUP, OTHER_GROUP, NO_GROUP = "payers", "others", "sreyap"
"""A group of the topic's name would have the topic's rights if kinds were mixed up; the last of
each are not there, and as long as the first."""
USER = "alice"
NAMES = (TOPIC, OTHER_TOPIC, "trips.NOTES", GROUP, OTHER_GROUP, USER)
ROW_KEY = "00000000-0000-4000-8000-000000000000"
COMMITTED = 1
SESSION_S = 30.0
ALLOWED = "allowed"
NO_TOPIC_RIGHT, NO_GROUP_RIGHT = "topic_authorization_failed", "group_authorization_failed"

Right = tuple[str, str]
"""A kind and an operation, on ``TOPIC`` or ``GROUP``."""
READ_TOPIC, DESCRIBE_TOPIC = ("topic", "read"), ("topic", "describe")
READ_GROUP, DESCRIBE_GROUP, DELETE_GROUP = (
    ("group", "read"),
    ("group", "describe"),
    ("group", "delete"),
)
RIGHTS: Final = [
    (kind, operation) for kind, operations in OPERATIONS.items() for operation in operations
]


class Principal(NamedTuple):
    """``held``: the rights of its ACLs on ``TOPIC`` and ``GROUP``. ``beside``: other names that it
    may describe."""

    name: str
    acls: tuple[Acl, ...]
    held: frozenset[Right]
    beside: frozenset[str] = frozenset()

    def has(self, right: Right) -> bool:
        kind, operation = right
        return right in self.held or (
            operation == "describe" and any(each == kind for each, _ in self.held)
        )


def _principals() -> list[Principal]:
    found = []
    for count in range(len(RIGHTS) + 1):
        for held in itertools.combinations(RIGHTS, count):
            name = "may " + ", ".join(f"{operation} {kind}" for kind, operation in held)
            acls = tuple(
                Acl(name, kind, {"topic": TOPIC, "group": GROUP}[kind], operation)
                for kind, operation in held
            )
            found.append(Principal(name, acls, frozenset(held)))
    everything = frozenset(RIGHTS)

    def all_on(name: str, topics: str, groups: str) -> tuple[Acl, ...]:
        return tuple(
            Acl(name, kind, {"topic": topics, "group": groups}[kind], operation)
            for kind, operation in RIGHTS
        )

    beside = frozenset((OTHER_TOPIC, "trips.NOTES"))
    return [
        *found,
        Principal(
            "other names",
            all_on("other names", OTHER_TOPIC, OTHER_GROUP),
            frozenset(),
            frozenset((OTHER_TOPIC, OTHER_GROUP)),
        ),
        Principal("kinds mixed up", all_on("kinds mixed up", GROUP, TOPIC), frozenset()),
        Principal("a prefix", all_on("a prefix", "tri*", "pay*"), everything, beside),
        Principal(
            "a longer prefix", all_on("a longer prefix", "trips.*", "payers.*"), frozenset(), beside
        ),
        Principal(
            "a name that begins alike",
            all_on("a name that begins alike", "trip", "payer"),
            frozenset(),
        ),
    ]


PRINCIPALS: Final = _principals()


@dataclass(frozen=True)
class Row:
    """One way to ask an API. ``needs``: the rights in the order in which they are asked for, each
    with the answer without it; ``told`` classifies an answer: ``ALLOWED`` only when it has the data
    asked for. ``versions``: all of the API's where it says nothing else. ``changes``: it takes
    committed offsets away or changes them when it is allowed, and leaves them when not."""

    about: str
    ask: Callable[[int], dict[str, Any]]
    told: Callable[[Any, Principal], str]
    needs: tuple[tuple[Right, str], ...] = ()
    versions: tuple[int, int] = (0, 99)
    changes: bool = False
    without: str = ALLOWED
    """The answer to everybody where no right is asked for."""

    def expected(self, principal: Principal) -> str:
        return next(
            (answer for right, answer in self.needs if not principal.has(right)), self.without
        )


def _names(found: list[str], wanted: str, principal: Principal) -> str:
    left = sorted(set(found) - principal.beside)
    return ALLOWED if left == [wanted] else "nothing" if not left else f"shown: {left}"


def _error(error: Any, allowed: str = "none") -> str:
    return ALLOWED if error.name == allowed else str(error.name)


def _partitions(answer: Any) -> list[Any]:
    return [
        each
        for topic in getattr(answer, "topics", None) or answer.responses
        for each in getattr(topic, "partitions", None) or topic.partition_responses
    ]


def _one(answer: Any, allowed: Callable[[Any], bool] = lambda _: True) -> str:
    """Of an answer for one partition."""
    [each] = _partitions(answer)
    assert each.error_code.name != "none" or allowed(each), each
    return _error(each.error_code)


def _fetched(answer: Any, _: Principal) -> str:
    [each] = _partitions(answer)
    if each.error_code.name != "none":
        assert not each.records, "records beside an error"
        assert each.high_watermark == -1, "a watermark beside an error"
    else:
        assert each.records, "nothing although it may be read"
    return _error(each.error_code)


def _fetch(by_id: bool) -> Callable[[int], dict[str, Any]]:
    partition = {"partition": SHARD, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    named = {"topic_id": lambda: TOPIC_IDS[TOPIC]} if by_id else {"topic": lambda: TOPIC}
    return lambda _: {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{**{name: value() for name, value in named.items()}, "partitions": [partition]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def _list_offsets(timestamp: int) -> Callable[[int], dict[str, Any]]:
    partition = {"partition_index": SHARD, "timestamp": timestamp, "current_leader_epoch": -1}
    return lambda _: {
        "replica_id": -1,
        "isolation_level": 0,
        "timeout": 1000,
        "topics": [{"name": TOPIC, "partitions": [partition]}],
    }


def _offsets_of(answer: Any) -> tuple[Any, list[tuple[str, int, str]]]:
    """Of OffsetFetch: the group's error and each partition's topic, offset and error."""
    group = answer.groups[0] if hasattr(answer, "groups") else answer
    found = [
        (topic.name, each.committed_offset, each.error_code.name)
        for topic in group.topics
        for each in topic.partitions
    ]
    return getattr(group, "error_code", None), found


def _committed_named(answer: Any, _: Principal) -> str:
    error, [(_topic, offset, told)] = (
        _offsets_of(answer)
        if _offsets_of(answer)[1]
        else (_offsets_of(answer)[0], [("", -1, "none")])
    )
    if error is not None and error.name != "none":
        assert offset == -1
        return str(error.name)
    assert (offset == COMMITTED) == (told == "none"), (
        "an offset beside an error, or none where it may be seen"
    )
    return ALLOWED if told == "none" else told


def _committed_all(answer: Any, principal: Principal) -> str:
    error, found = _offsets_of(answer)
    if error.name != "none":
        assert not found
        return str(error.name)
    return _names([topic for topic, _, _ in found], TOPIC, principal)


def _offset_fetch(topics: list[dict[str, Any]] | None) -> Callable[[int], dict[str, Any]]:
    return lambda version: (
        {"groups": [{"group_id": GROUP, "topics": topics}], "require_stable": False}
        if version >= 8
        else {"group_id": GROUP, "topics": topics, "require_stable": False}
    )


def _coordinator(answer: Any, _: Principal) -> str:
    each = answer.coordinators[0] if hasattr(answer, "coordinators") else answer
    assert (each.node_id >= 0) == (each.error_code.name == "none")
    return _error(each.error_code)


def _find(kind: int, key: str) -> Callable[[int], dict[str, Any]]:
    return lambda version: {"key_type": kind, "key": key, "coordinator_keys": [key]}


def _left(answer: Any, _: Principal) -> str:
    members = getattr(answer, "members", ())
    return _error(members[0].error_code if members else answer.error_code, "unknown_member_id")


def _own_acls(answer: Any, principal: Principal) -> str:
    told = [acl.principal for resource in answer.resources for acl in resource.acls]
    assert told == [f"User:{principal.name}"] * len(principal.acls)
    return _error(answer.error_code)


SHARD = 0
TOPIC_IDS: dict[str, Any] = {}
"""Filled by the gateway."""
_LIST_TOPICS: Final = ((DESCRIBE_TOPIC, "nothing"),)
_ONE_PARTITION: Final = {"partition_index": SHARD}
_MEMBER: Final = {
    "group_id": GROUP,
    "member_id": "nobody",
    "generation_id": 1,
    "group_instance_id": None,
}
_CONFIGS: Final = {"configuration_keys": None}
_NO_EXPLANATIONS: Final = {"include_synonyms": False, "include_documentation": False}
_NO_OPERATIONS: Final = dict.fromkeys(
    (
        "include_topic_authorized_operations",
        "include_cluster_authorized_operations",
        "include_authorized_operations",
    ),
    False,
)
_LOG_DIR_TOPIC: Final = {"topic": TOPIC, "partitions": [SHARD]}


def _log_dirs(answer: Any, principal: Principal) -> str:
    return _names(
        [topic.name for result in answer.results for topic in result.topics], TOPIC, principal
    )


def _metadata_all(answer: Any, principal: Principal) -> str:
    return _names([topic.name for topic in answer.topics], TOPIC, principal)


def _metadata_one(answer: Any, _: Principal) -> str:
    [topic] = answer.topics
    assert bool(topic.partitions) == (topic.error_code.name == "none")
    return _error(topic.error_code)


def _configs(answer: Any, _: Principal) -> str:
    [result] = answer.results
    assert result.error_code.name == "none" or not result.configs
    return _error(result.error_code)


def _described_group(answer: Any, _: Principal) -> str:
    [group] = answer.groups
    assert (group.group_state == "Empty") == (group.error_code.name == "none")
    return _error(group.error_code)


def _refused(values: dict[str, Any], error: Callable[[Any], Any], always: str) -> list[Row]:
    """Requests that nobody may make here, with any rights."""
    return [
        Row("refused", lambda _: values, lambda answer, _: _error(error(answer)), without=always)
    ]


_SETTINGS: Final = {
    "resources": [{"resource_type": 2, "resource_name": TOPIC, "configs": []}],
    "validate_only": True,
}

ROWS: Final[dict[int, list[Row]]] = {
    0: [
        Row(
            "a record",
            lambda _: {
                "transactional_id": None,
                "acks": 1,
                "timeout": 1000,
                "topic_data": [{"name": TOPIC, "partition_data": [{"index": 0, "records": None}]}],
            },
            lambda answer, _: _one(answer),
            without=NO_TOPIC_RIGHT,
        )
    ],
    1: [
        Row("by name", _fetch(by_id=False), _fetched, ((READ_TOPIC, NO_TOPIC_RIGHT),), (4, 12)),
        Row(
            "by id",
            _fetch(by_id=True),
            _fetched,
            ((DESCRIBE_TOPIC, "unknown_topic_id"), (READ_TOPIC, NO_TOPIC_RIGHT)),
            (13, 17),
        ),
    ],
    2: [
        Row(
            about,
            _list_offsets(timestamp),
            lambda answer, _: _one(answer, lambda each: each.offset >= 0),
            ((DESCRIBE_TOPIC, NO_TOPIC_RIGHT),),
        )
        for about, timestamp in (("the latest", -1), ("by a moment", 0))
    ],
    3: [
        Row(
            "all",
            lambda version: {
                "topics": None if version else [],
                "allow_auto_topic_creation": False,
                **_NO_OPERATIONS,
            },
            _metadata_all,
            _LIST_TOPICS,
        ),
        Row(
            "by name",
            lambda _: {
                "topics": [{"name": TOPIC, "topic_id": None}],
                "allow_auto_topic_creation": False,
                **_NO_OPERATIONS,
            },
            _metadata_one,
            ((DESCRIBE_TOPIC, NO_TOPIC_RIGHT),),
        ),
        Row(
            "by id",
            lambda _: {
                "topics": [{"name": None, "topic_id": TOPIC_IDS[TOPIC]}],
                "allow_auto_topic_creation": False,
                **_NO_OPERATIONS,
            },
            _metadata_one,
            ((DESCRIBE_TOPIC, "unknown_topic_id"),),
            (10, 13),
        ),
    ],
    8: [
        Row(
            "an offset",
            lambda _: {
                **_MEMBER,
                "member_id": "",
                "generation_id": -1,
                "generation_id_or_member_epoch": -1,
                "retention_time": -1,
                "topics": [
                    {
                        "name": TOPIC,
                        "partitions": [
                            {
                                **_ONE_PARTITION,
                                "committed_offset": 0,
                                "committed_leader_epoch": -1,
                                "committed_metadata": None,
                            }
                        ],
                    }
                ],
            },
            lambda answer, _: _one(answer),
            ((READ_GROUP, NO_GROUP_RIGHT), (READ_TOPIC, NO_TOPIC_RIGHT)),
            changes=True,
        )
    ],
    9: [
        Row(
            "named",
            _offset_fetch([{"name": TOPIC, "partition_indexes": [SHARD]}]),
            _committed_named,
            ((DESCRIBE_GROUP, NO_GROUP_RIGHT), (DESCRIBE_TOPIC, NO_TOPIC_RIGHT)),
        ),
        Row(
            "all",
            _offset_fetch(None),
            _committed_all,
            ((DESCRIBE_GROUP, NO_GROUP_RIGHT), (DESCRIBE_TOPIC, "nothing")),
            (2, 9),
        ),
    ],
    10: [
        Row("of a group", _find(0, GROUP), _coordinator, ((DESCRIBE_GROUP, NO_GROUP_RIGHT),)),
        Row(
            "of a transaction",
            _find(1, GROUP),
            _coordinator,
            versions=(1, 6),
            without="cluster_authorization_failed",
        ),
    ],
    11: [
        Row(
            "an unknown member",
            lambda _: {
                **_MEMBER,
                "session_timeout": 10_000,
                "rebalance_timeout": 10_000,
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": b""}],
            },
            lambda answer, _: _error(answer.error_code, "unknown_member_id"),
            ((READ_GROUP, NO_GROUP_RIGHT),),
        )
    ],
    12: [
        Row(
            "an unknown member",
            lambda _: _MEMBER,
            lambda answer, _: _error(answer.error_code, "unknown_member_id"),
            ((READ_GROUP, NO_GROUP_RIGHT),),
        )
    ],
    13: [
        Row(
            "an unknown member",
            lambda _: {**_MEMBER, "members": [{"member_id": "nobody", "group_instance_id": None}]},
            _left,
            ((READ_GROUP, NO_GROUP_RIGHT),),
        )
    ],
    14: [
        Row(
            "an unknown member",
            lambda _: {
                **_MEMBER,
                "protocol_type": "consumer",
                "protocol_name": "range",
                "assignments": [],
            },
            lambda answer, _: _error(answer.error_code, "unknown_member_id"),
            ((READ_GROUP, NO_GROUP_RIGHT),),
        )
    ],
    15: [
        Row(
            "a group",
            lambda _: {"groups": [GROUP], **_NO_OPERATIONS},
            _described_group,
            ((DESCRIBE_GROUP, NO_GROUP_RIGHT),),
        )
    ],
    16: [
        Row(
            "all",
            lambda _: {"states_filter": [], "types_filter": []},
            lambda answer, principal: _names(
                [group.group_id for group in answer.groups], GROUP, principal
            ),
            ((DESCRIBE_GROUP, "nothing"),),
        )
    ],
    17: [
        Row(
            "too late",
            lambda _: {"mechanism": "PLAIN"},
            lambda answer, _: _error(answer.error_code),
            without="illegal_sasl_state",
        )
    ],
    18: [
        Row(
            "all",
            lambda _: {"client_software_name": "test", "client_software_version": "1"},
            lambda answer, _: _error(answer.error_code),
        )
    ],
    19: _refused(
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
    20: _refused(
        {
            "topics": [{"name": TOPIC, "topic_id": None}],
            "topic_names": [TOPIC],
            "timeout": 1000,
        },
        lambda answer: answer.responses[0].error_code,
        "topic_authorization_failed",
    ),
    21: _refused(
        {
            "topics": [{"name": TOPIC, "partitions": [{"partition_index": SHARD, "offset": -1}]}],
            "timeout": 1000,
        },
        lambda answer: answer.topics[0].partitions[0].error_code,
        "topic_authorization_failed",
    ),
    22: [
        Row(
            "a producer",
            lambda _: {
                "transactional_id": None,
                "transaction_timeout": 1000,
                "producer_id": -1,
                "producer_epoch": -1,
            },
            lambda answer, _: _error(answer.error_code),
        ),
        Row(
            "a producer with transactions",
            lambda _: {
                "transactional_id": "charges",
                "transaction_timeout": 1000,
                "producer_id": -1,
                "producer_epoch": -1,
            },
            lambda answer, _: _error(answer.error_code),
            without="cluster_authorization_failed",
        ),
    ],
    23: [
        Row(
            "an epoch",
            lambda _: {
                "replica_id": -1,
                "topics": [
                    {
                        "topic": TOPIC,
                        "partitions": [
                            {"partition": SHARD, "current_leader_epoch": -1, "leader_epoch": 0}
                        ],
                    }
                ],
            },
            lambda answer, _: _one(answer, lambda each: each.end_offset >= 0),
            ((DESCRIBE_TOPIC, NO_TOPIC_RIGHT),),
        )
    ],
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
    30: _refused(
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
    31: _refused(
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
    33: _refused(
        _SETTINGS,
        lambda answer: answer.responses[0].error_code,
        "topic_authorization_failed",
    ),
    35: [
        Row("all", lambda _: {"topics": None}, _log_dirs, _LIST_TOPICS),
        Row("named", lambda _: {"topics": [_LOG_DIR_TOPIC]}, _log_dirs, _LIST_TOPICS),
    ],
    36: [
        Row(
            "too late",
            lambda _: {"auth_bytes": b""},
            lambda answer, _: _error(answer.error_code),
            without="illegal_sasl_state",
        )
    ],
    37: _refused(
        {
            "topics": [{"name": TOPIC, "count": 99, "assignments": None}],
            "timeout": 1000,
            "validate_only": True,
        },
        lambda answer: answer.results[0].error_code,
        "topic_authorization_failed",
    ),
    42: [
        Row(
            "a group",
            lambda _: {"groups_names": [GROUP]},
            lambda answer, _: _error(answer.results[0].error_code),
            ((DELETE_GROUP, NO_GROUP_RIGHT),),
            changes=True,
        )
    ],
    44: _refused(
        _SETTINGS,
        lambda answer: answer.responses[0].error_code,
        "topic_authorization_failed",
    ),
    46: [
        Row(
            "all",
            lambda _: {"timeout": 1000, "topics": None},
            lambda answer, _: _error(answer.error_code),
        )
    ],
    47: [
        Row(
            "an offset",
            lambda _: {
                "group_id": GROUP,
                "topics": [{"name": TOPIC, "partitions": [_ONE_PARTITION]}],
            },
            lambda answer, _: (
                _one(answer) if answer.error_code.name == "none" else str(answer.error_code.name)
            ),
            ((DELETE_GROUP, NO_GROUP_RIGHT), (READ_TOPIC, NO_TOPIC_RIGHT)),
            changes=True,
        )
    ],
    48: [
        Row(
            "all",
            lambda _: {"components": [], "strict": False},
            lambda answer, _: _error(answer.error_code) if not answer.entries else "entries",
        )
    ],
    50: [
        Row(
            "all",
            lambda _: {"users": None},
            lambda answer, _: _error(answer.error_code) if not answer.results else "users",
        ),
        Row(
            "another user",
            lambda _: {"users": [{"name": USER}]},
            lambda answer, _: _error(answer.results[0].error_code),
            without="resource_not_found",
        ),
    ],
    60: [
        Row(
            "all",
            lambda _: {"endpoint_type": 1, "include_fenced_brokers": False, **_NO_OPERATIONS},
            lambda answer, _: _error(answer.error_code),
        )
    ],
    61: [
        Row(
            "a partition",
            lambda _: {"topics": [{"name": TOPIC, "partition_indexes": [SHARD]}]},
            lambda answer, _: _one(answer),
            ((READ_TOPIC, NO_TOPIC_RIGHT),),
        )
    ],
    66: [
        Row(
            "all",
            lambda _: {
                "state_filters": [],
                "producer_id_filters": [],
                "duration_filter": -1,
                "transactional_id_pattern": None,
            },
            lambda answer, _: (
                _error(answer.error_code) if not answer.transaction_states else "transactions"
            ),
        )
    ],
    68: _refused(
        {
            "group_id": GROUP,
            "member_id": "",
            "member_epoch": 0,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": 1000,
            "subscribed_topic_names": [TOPIC],
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": [],
        },
        lambda answer: answer.error_code,
        "unsupported_version",
    ),
    74: [
        Row(
            "metrics of clients",
            lambda _: {},
            lambda answer, _: (
                _error(answer.error_code) if not answer.config_resources else "resources"
            ),
            versions=(0, 0),
        ),
        Row(
            "all",
            lambda _: {"resource_types": []},
            lambda answer, principal: _names(
                [each.resource_name for each in answer.config_resources if each.resource_type == 2],
                TOPIC,
                principal,
            ),
            _LIST_TOPICS,
            (1, 1),
        ),
    ],
}

VERSIONS: Final = [
    (key, version)
    for key, api in APIS.items()
    for version in range(api.versions[0], api.versions[1] + 1)
]


def rows_of(key: int, version: int) -> list[Row]:
    return [row for row in ROWS.get(key, []) if row.versions[0] <= version <= row.versions[1]]


class Running(NamedTuple):
    """A gateway in this process. ``run`` runs a coroutine on its loop."""

    context: GatewayContext
    state: StateTable
    offsets: StoreCoordinator
    run: Callable[[Coroutine[Any, Any, Any]], Any]

    async def ask(self, key: int, version: int, values: dict[str, Any], principal: str) -> bytes:
        """The answer's frame without its length."""
        frame = head_bytes(key, version) + encoded(key, version, values)
        head = read_head(frame, FLEXIBLE_FROM)
        peer = Peer(head.client_id, "127.0.0.1", version, "default", principal, 1, monotonic())
        read = read_fetch if key == api_01_fetch.KEY else read_request
        result = await APIS[key].handle(self.context, read(frame, head), head, peer)
        answer = b"".join(result) if isinstance(result, list) else write_response(head, result)
        assert struct.unpack(">i", answer[:4]) == (len(answer) - 4,)
        return answer[4:]

    def commit(self) -> None:
        """Commits the group's offsets again: in partitions of its own topic and of another."""
        self.offsets.commit_offsets(
            GROUP,
            {
                (TOPIC, SHARD): CommittedOffset(COMMITTED),
                (OTHER_TOPIC, SHARD): CommittedOffset(COMMITTED),
            },
        )
        self.offsets.commit_offsets(OTHER_GROUP, {(TOPIC, SHARD): CommittedOffset(COMMITTED)})

    def committed(self) -> dict[tuple[str, int], int]:
        return {place: offset.offset for place, offset in self.offsets.fetch_offsets(GROUP).items()}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="gateway under test")
    thread.start()

    def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)

    with Datastore.open_embedded(tmp_path_factory.mktemp("rights"), shards=1) as datastore:
        for column in ("BASE", "NOTES"):
            datastore.put_cell(ROW_KEY, column, 1, {"fare": 3}).or_raise()
        put_user(datastore.state, USER, "correct horse, battery", is_new=True)
        for acl in (acl for principal in PRINCIPALS for acl in principal.acls):
            allow(datastore.state, acl)
        offsets = StoreCoordinator(datastore.state)
        gateway = Gateway(
            datastore,
            offsets,
            GatewayConfig(
                port=0, registry_port=0, group_initial_delay_s=0, session_timeout_s=SESSION_S
            ),
        )
        run(gateway.start())
        context = gateway.context
        assert context is not None
        try:
            wait_until(
                lambda: (
                    context.cluster.coordinates(GROUP) and context.cluster.coordinates(OTHER_GROUP)
                ),
                "the gateway coordinates both groups",
            )
            context.topics.refresh()
            TOPIC_IDS.update({topic.name: topic.topic_id for topic in context.topics.all()})
            yield Running(context, datastore.state, offsets, run)
        finally:
            run(gateway.stop())
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
            offsets.close()


def test_every_api_and_version_has_a_row() -> None:
    assert set(ROWS) == set(APIS), "an API without a row, or a row without an API"
    assert [place for place in VERSIONS if not rows_of(*place)] == []


def test_every_right_is_asked_for_by_an_api_and_every_set_of_them_is_tried() -> None:
    assert {right for rows in ROWS.values() for row in rows for right, _ in row.needs} == set(
        RIGHTS
    )
    assert {principal.held for principal in PRINCIPALS} == {
        frozenset(each) for count in range(6) for each in itertools.combinations(RIGHTS, count)
    }


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_who_has_the_rights_is_answered_and_nobody_else(
    running: Running, key: int, version: int
) -> None:
    for row in rows_of(key, version):
        values = row.ask(version)
        running.commit()
        before = running.committed()
        for principal in PRINCIPALS:
            about = (
                f"{APIS[key].handle.__module__} version {version}, {row.about}: {principal.name}"
            )
            answer = running.run(running.ask(key, version, values, principal.name))
            assert row.told(decoded(key, version, answer), principal) == row.expected(principal), (
                about
            )
            _shows_no_name(answer, values, principal, about)
            if row.changes:
                changed = running.committed() != before
                assert changed == (row.expected(principal) == ALLOWED), about
                if changed:
                    assert running.committed().get((OTHER_TOPIC, SHARD), COMMITTED) == COMMITTED, (
                        about
                    )
                    running.commit()
        assert running.committed() == before


def _shows_no_name(answer: bytes, values: dict[str, Any], principal: Principal, about: str) -> None:
    """No name is in an answer that the principal may not describe, and has not asked for."""
    visible = {TOPIC} if principal.has(DESCRIBE_TOPIC) else set()
    visible |= {GROUP} if principal.has(DESCRIBE_GROUP) else set()
    own = {acl.pattern.rstrip("*") for acl in principal.acls}
    for name in {*NAMES} - visible - principal.beside - own:
        if name not in repr(values) and not any(
            name in seen for seen in visible | principal.beside | own
        ):
            assert name.encode() not in answer, f"{about}: shown {name}"


@pytest.mark.parametrize(
    ("key", "version"),
    [
        (key, version)
        for key, version in VERSIONS
        if any(row.needs for row in rows_of(key, version))
    ],
)
def test_without_a_right_nobody_learns_whether_a_name_is_there(
    running: Running, key: int, version: int
) -> None:
    """The answer about a topic or group that is there is the one about one that is not, byte for
    byte."""
    nobody = next(principal for principal in PRINCIPALS if not principal.acls)
    absent_id = type(TOPIC_IDS[TOPIC])(int=TOPIC_IDS[TOPIC].int ^ 1)
    for row in rows_of(key, version):
        values = row.ask(version)
        swapped = _swapped(values, {TOPIC: NO_TOPIC, GROUP: NO_GROUP, TOPIC_IDS[TOPIC]: absent_id})
        there, absent = (
            running.run(running.ask(key, version, each, nobody.name)) for each in (values, swapped)
        )
        for name, instead in (
            (TOPIC.encode(), NO_TOPIC.encode()),
            (GROUP.encode(), NO_GROUP.encode()),
            (TOPIC_IDS[TOPIC].bytes, absent_id.bytes),
        ):
            there = there.replace(name, instead)
        assert there == absent, row.about


def _swapped(value: Any, names: dict[Any, Any]) -> Any:
    if isinstance(value, dict):
        return {field: _swapped(each, names) for field, each in value.items()}
    if isinstance(value, list):
        return [_swapped(each, names) for each in value]
    return names.get(value, value) if not isinstance(value, bool | int | bytes) else value


def test_a_user_is_shown_itself_and_what_others_may_do_is_not(running: Running) -> None:
    shown = decoded(50, 0, running.run(running.ask(50, 0, {"users": None}, USER)))
    assert [each.user for each in shown.results] == [USER]
    acls = decoded(29, 1, running.run(running.ask(29, 1, ROWS[29][0].ask(1), USER)))
    assert acls.resources == ()


def test_only_without_users_and_without_acls_everything_is_allowed(running: Running) -> None:
    guarded = running.context.security
    [user] = [each for each in list_users(running.state) if each.name == USER]
    told = {}
    try:
        for users, acls in itertools.product(
            ({}, {USER: user}), (frozenset(), frozenset(PRINCIPALS[-1].acls))
        ):
            running.context.security = Security(users, acls, b"")
            answer = running.run(running.ask(1, 12, ROWS[1][0].ask(12), "ANONYMOUS"))
            told[bool(users), bool(acls)] = _fetched(decoded(1, 12, answer), PRINCIPALS[0])
    finally:
        running.context.security = guarded
    assert told == {
        (False, False): ALLOWED,
        (False, True): NO_TOPIC_RIGHT,
        (True, False): NO_TOPIC_RIGHT,
        (True, True): NO_TOPIC_RIGHT,
    }


def test_the_gateway_knows_the_acls_of_the_matrix(running: Running) -> None:
    for principal in PRINCIPALS:
        assert set(running.context.security.acls_of(principal.name)) == set(principal.acls)
