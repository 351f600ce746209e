"""The questions about topics, partitions and records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from cellfeed.bridge.events.record_batch_reader import decode_record_batches
from tests.clients.beside_kafka.answers import only_named, with_records
from tests.clients.beside_kafka.api_keys import (
    DESCRIBE_CONFIGS,
    FETCH,
    LEADER_EPOCH,
    LIST_OFFSETS,
    METADATA,
)
from tests.clients.beside_kafka.requests import (
    fetch_request,
    from_offset,
    list_offsets_request,
    metadata_request,
)
from tests.clients.beside_kafka.side import TOPIC, UNKNOWN_TOPIC_ID, Side
from tests.support.raw_requests import ask, encoded
from tests.support.trips_log import SHARDS


def whole_log(port: int, shard: int) -> bytes:
    [answer] = (
        ask(port, FETCH, 11, encoded(FETCH, 11, fetch_request([from_offset(shard, 0)])))
        .responses[0]
        .partitions
    )
    assert isinstance(answer.records, bytes)
    return answer.records


def questions_of_the_log(
    side: Side, ask_for: Any, versions: dict[int, int]
) -> Iterator[tuple[str, int, Any]]:
    yield only_named(
        TOPIC,
        "topics",
        ask_for("all", METADATA, **metadata_request(None if versions[METADATA] else [])),
    )
    for label, name in (("one", TOPIC), ("unknown", "nobodys"), ("odd", "no such/topic")):
        yield ask_for(
            label, METADATA, **metadata_request([{"topic_id": UUID(int=0), "name": name}])
        )
    if versions[METADATA] >= 12:
        yield ask_for(
            "unknown id",
            METADATA,
            **metadata_request([{"topic_id": UNKNOWN_TOPIC_ID, "name": None}]),
        )
        yield ask_for(
            "by id", METADATA, **metadata_request([{"topic_id": side.topic_id, "name": None}])
        )
    first_ms, last_ms = _moments(side)
    for label, timestamp in (
        ("latest", -1),
        ("earliest", -2),
        ("first moment", first_ms),
        ("before", 1),
        ("behind the end", last_ms + 1),
    ):
        yield ask_for(label, LIST_OFFSETS, **list_offsets_request(TOPIC, range(SHARDS), timestamp))
    if versions[LIST_OFFSETS] >= 7:
        yield ask_for(
            "newest moment", LIST_OFFSETS, **list_offsets_request(TOPIC, range(SHARDS), -3)
        )
    yield ask_for("unknown partition", LIST_OFFSETS, **list_offsets_request(TOPIC, [SHARDS], -1))
    yield ask_for("unknown topic", LIST_OFFSETS, **list_offsets_request("nobodys", [0], -1))
    yield ask_for("future epoch", LIST_OFFSETS, **list_offsets_request(TOPIC, [0], -1, epoch=40))
    for label, partitions in (
        ("start", [from_offset(shard, 0) for shard in range(SHARDS)]),
        ("middle", [from_offset(1, 11)]),
        ("end", [from_offset(0, _end(side))]),
        ("beyond", [from_offset(0, 10_000)]),
        ("negative", [from_offset(0, -5)]),
        ("unknown partition", [from_offset(SHARDS, 0)]),
        ("future epoch", [{**from_offset(0, 0), "current_leader_epoch": 40}]),
    ):
        yield with_records(ask_for(label, FETCH, **fetch_request(partitions, side.topic_id)))
    yield with_records(
        ask_for(
            "unknown topic",
            FETCH,
            **fetch_request([from_offset(0, 0)], UNKNOWN_TOPIC_ID, "nobodys"),
        )
    )
    yield with_records(
        ask_for(
            "committed",
            FETCH,
            **{**fetch_request([from_offset(0, 0)], side.topic_id), "isolation_level": 1},
        )
    )
    yield with_records(
        ask_for(
            "unknown session",
            FETCH,
            **{
                **fetch_request([from_offset(0, 0)], side.topic_id),
                "session_id": 99,
                "session_epoch": 5,
            },
        )
    )
    epochs = (
        ("present", TOPIC, 0, 0),
        ("future", TOPIC, 0, 9),
        ("unknown partition", TOPIC, SHARDS, 0),
        ("unknown", "nobodys", 0, 0),
    )
    for label, topic, partition, epoch in epochs:
        partitions = [{"partition": partition, "current_leader_epoch": -1, "leader_epoch": epoch}]
        yield ask_for(
            label, LEADER_EPOCH, replica_id=-1, topics=[{"topic": topic, "partitions": partitions}]
        )
    for label, kind, name in (
        ("topic", 2, TOPIC),
        ("unknown topic", 2, "nobodys"),
        ("odd topic", 2, "a/b"),
        ("group", 32, "any"),
        ("unnamed group", 32, ""),
        ("unknown kind", 99, "x"),
    ):
        resources = [
            {
                "resource_type": kind,
                "resource_name": name,
                "configuration_keys": ["cleanup.policy", "max.message.bytes", "retention.ms"],
            }
        ]
        yield ask_for(
            label,
            DESCRIBE_CONFIGS,
            resources=resources,
            include_synonyms=False,
            include_documentation=False,
        )


def _moments(side: Side) -> tuple[int, int]:
    records = [
        record
        for shard in range(SHARDS)
        for record in decode_record_batches(whole_log(side.port, shard))
    ]
    return min(record.timestamp_ms for record in records), max(
        record.timestamp_ms for record in records
    )


def _end(side: Side) -> int:
    return len(list(decode_record_batches(whole_log(side.port, 0))))
