"""The rows of APIs about topics, partitions and records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.clients.rights.principals import DESCRIBE_TOPIC, READ_TOPIC, TOPIC, Principal
from tests.clients.rights.rows import (
    LIST_TOPICS,
    NO_OPERATIONS,
    NO_TOPIC_RIGHT,
    SHARD,
    TOPIC_IDS,
    Row,
    name_of_error,
    one_partition,
    only_name,
    partitions_of,
    refused_rows,
)


def fetched(answer: Any, _: Principal) -> str:
    [each] = partitions_of(answer)
    if each.error_code.name != "none":
        assert not each.records, "records beside an error"
        assert each.high_watermark == -1, "a watermark beside an error"
    else:
        assert each.records, "nothing although it may be read"
    return name_of_error(each.error_code)


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


_LOG_DIR_TOPIC: Final = {"topic": TOPIC, "partitions": [SHARD]}


def _log_dirs(answer: Any, principal: Principal) -> str:
    return only_name(
        [topic.name for result in answer.results for topic in result.topics], TOPIC, principal
    )


def _metadata_all(answer: Any, principal: Principal) -> str:
    return only_name([topic.name for topic in answer.topics], TOPIC, principal)


def _metadata_one(answer: Any, _: Principal) -> str:
    [topic] = answer.topics
    assert bool(topic.partitions) == (topic.error_code.name == "none")
    return name_of_error(topic.error_code)


LOG_ROWS: Final[dict[int, list[Row]]] = {
    0: [
        Row(
            "a record",
            lambda _: {
                "transactional_id": None,
                "acks": 1,
                "timeout": 1000,
                "topic_data": [{"name": TOPIC, "partition_data": [{"index": 0, "records": None}]}],
            },
            lambda answer, _: one_partition(answer),
            without=NO_TOPIC_RIGHT,
        )
    ],
    1: [
        Row("by name", _fetch(by_id=False), fetched, ((READ_TOPIC, NO_TOPIC_RIGHT),), (4, 12)),
        Row(
            "by id",
            _fetch(by_id=True),
            fetched,
            ((DESCRIBE_TOPIC, "unknown_topic_id"), (READ_TOPIC, NO_TOPIC_RIGHT)),
            (13, 17),
        ),
    ],
    2: [
        Row(
            about,
            _list_offsets(timestamp),
            lambda answer, _: one_partition(answer, lambda each: each.offset >= 0),
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
                **NO_OPERATIONS,
            },
            _metadata_all,
            LIST_TOPICS,
        ),
        Row(
            "by name",
            lambda _: {
                "topics": [{"name": TOPIC, "topic_id": None}],
                "allow_auto_topic_creation": False,
                **NO_OPERATIONS,
            },
            _metadata_one,
            ((DESCRIBE_TOPIC, NO_TOPIC_RIGHT),),
        ),
        Row(
            "by id",
            lambda _: {
                "topics": [{"name": None, "topic_id": TOPIC_IDS[TOPIC]}],
                "allow_auto_topic_creation": False,
                **NO_OPERATIONS,
            },
            _metadata_one,
            ((DESCRIBE_TOPIC, "unknown_topic_id"),),
            (10, 13),
        ),
    ],
    21: refused_rows(
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
            lambda answer, _: name_of_error(answer.error_code),
        ),
        Row(
            "a producer with transactions",
            lambda _: {
                "transactional_id": "charges",
                "transaction_timeout": 1000,
                "producer_id": -1,
                "producer_epoch": -1,
            },
            lambda answer, _: name_of_error(answer.error_code),
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
            lambda answer, _: one_partition(answer, lambda each: each.end_offset >= 0),
            ((DESCRIBE_TOPIC, NO_TOPIC_RIGHT),),
        )
    ],
    35: [
        Row("all", lambda _: {"topics": None}, _log_dirs, LIST_TOPICS),
        Row("named", lambda _: {"topics": [_LOG_DIR_TOPIC]}, _log_dirs, LIST_TOPICS),
    ],
    61: [
        Row(
            "a partition",
            lambda _: {"topics": [{"name": TOPIC, "partition_indexes": [SHARD]}]},
            lambda answer, _: one_partition(answer),
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
                name_of_error(answer.error_code)
                if not answer.transaction_states
                else "transactions"
            ),
        )
    ],
}
"""Of APIs about topics, partitions and records, by key."""
