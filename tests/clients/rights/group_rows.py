"""The rows of APIs about consumer groups and their offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.clients.rights.principals import (
    DELETE_GROUP,
    DESCRIBE_GROUP,
    DESCRIBE_TOPIC,
    GROUP,
    READ_GROUP,
    READ_TOPIC,
    TOPIC,
    Principal,
)
from tests.clients.rights.rows import (
    ALLOWED,
    COMMITTED,
    NO_GROUP_RIGHT,
    NO_OPERATIONS,
    NO_TOPIC_RIGHT,
    ONE_PARTITION,
    SHARD,
    Row,
    name_of_error,
    one_partition,
    only_name,
    refused_rows,
)


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
    return only_name([topic for topic, _, _ in found], TOPIC, principal)


def _offset_fetch(topics: list[dict[str, Any]] | None) -> Callable[[int], dict[str, Any]]:
    return lambda version: (
        {"groups": [{"group_id": GROUP, "topics": topics}], "require_stable": False}
        if version >= 8
        else {"group_id": GROUP, "topics": topics, "require_stable": False}
    )


def _coordinator(answer: Any, _: Principal) -> str:
    each = answer.coordinators[0] if hasattr(answer, "coordinators") else answer
    assert (each.node_id >= 0) == (each.error_code.name == "none")
    return name_of_error(each.error_code)


def _find(kind: int, key: str) -> Callable[[int], dict[str, Any]]:
    return lambda version: {"key_type": kind, "key": key, "coordinator_keys": [key]}


def _left(answer: Any, _: Principal) -> str:
    members = getattr(answer, "members", ())
    return name_of_error(
        members[0].error_code if members else answer.error_code, "unknown_member_id"
    )


_MEMBER: Final = {
    "group_id": GROUP,
    "member_id": "nobody",
    "generation_id": 1,
    "group_instance_id": None,
}


def _described_group(answer: Any, _: Principal) -> str:
    [group] = answer.groups
    assert (group.group_state == "Empty") == (group.error_code.name == "none")
    return name_of_error(group.error_code)


GROUP_ROWS: Final[dict[int, list[Row]]] = {
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
                                **ONE_PARTITION,
                                "committed_offset": 0,
                                "committed_leader_epoch": -1,
                                "committed_metadata": None,
                            }
                        ],
                    }
                ],
            },
            lambda answer, _: one_partition(answer),
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
            lambda answer, _: name_of_error(answer.error_code, "unknown_member_id"),
            ((READ_GROUP, NO_GROUP_RIGHT),),
        )
    ],
    12: [
        Row(
            "an unknown member",
            lambda _: _MEMBER,
            lambda answer, _: name_of_error(answer.error_code, "unknown_member_id"),
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
            lambda answer, _: name_of_error(answer.error_code, "unknown_member_id"),
            ((READ_GROUP, NO_GROUP_RIGHT),),
        )
    ],
    15: [
        Row(
            "a group",
            lambda _: {"groups": [GROUP], **NO_OPERATIONS},
            _described_group,
            ((DESCRIBE_GROUP, NO_GROUP_RIGHT),),
        )
    ],
    16: [
        Row(
            "all",
            lambda _: {"states_filter": [], "types_filter": []},
            lambda answer, principal: only_name(
                [group.group_id for group in answer.groups], GROUP, principal
            ),
            ((DESCRIBE_GROUP, "nothing"),),
        )
    ],
    42: [
        Row(
            "a group",
            lambda _: {"groups_names": [GROUP]},
            lambda answer, _: name_of_error(answer.results[0].error_code),
            ((DELETE_GROUP, NO_GROUP_RIGHT),),
            changes=True,
        )
    ],
    47: [
        Row(
            "an offset",
            lambda _: {
                "group_id": GROUP,
                "topics": [{"name": TOPIC, "partitions": [ONE_PARTITION]}],
            },
            lambda answer, _: (
                one_partition(answer)
                if answer.error_code.name == "none"
                else str(answer.error_code.name)
            ),
            ((DELETE_GROUP, NO_GROUP_RIGHT), (READ_TOPIC, NO_TOPIC_RIGHT)),
            changes=True,
        )
    ],
    68: refused_rows(
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
}
"""Of APIs about consumer groups and their offsets, by key."""
