"""The values of requests."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tests.clients.beside_kafka.side import TOPIC, UNKNOWN_TOPIC_ID, Side


def metadata_request(topics: list[dict[str, Any]] | None) -> dict[str, Any]:
    return {
        "topics": topics,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
        "include_cluster_authorized_operations": False,
    }


def list_offsets_request(
    topic: str, partitions: Any, timestamp: int, epoch: int = -1
) -> dict[str, Any]:
    wanted = [
        {"partition_index": partition, "current_leader_epoch": epoch, "timestamp": timestamp}
        for partition in partitions
    ]
    return {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": topic, "partitions": wanted}],
        "timeout": 1000,
    }


def from_offset(partition: int, offset: int) -> dict[str, Any]:
    return {
        "partition": partition,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }


def fetch_request(
    partitions: list[dict[str, Any]], topic_id: UUID = UNKNOWN_TOPIC_ID, topic: str = TOPIC
) -> dict[str, Any]:
    return {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic, "topic_id": topic_id, "partitions": partitions}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def join_request(group: str) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"any"}],
        "reason": None,
    }


def simple_member(group: str) -> dict[str, Any]:
    return {
        "group_id": group,
        "member_id": "",
        "group_instance_id": None,
        "generation_id_or_member_epoch": -1,
    }


def commit_topic(
    partition: int, offset: int, metadata: str | None = "", topic: str = TOPIC
) -> dict[str, Any]:
    each = {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": metadata,
        "commit_timestamp": -1,
    }
    return {"name": topic, "partitions": [each]}


def offset_fetch_request(group: str, partitions: list[int] | None) -> dict[str, Any]:
    topics = None if partitions is None else [{"name": TOPIC, "partition_indexes": partitions}]
    return {
        "group_id": group,
        "topics": topics,
        "groups": [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}],
        "require_stable": False,
    }


def offset_delete_request(group: str, partitions: list[int], topic: str = TOPIC) -> dict[str, Any]:
    return {
        "group_id": group,
        "topics": [
            {
                "name": topic,
                "partitions": [{"partition_index": partition} for partition in partitions],
            }
        ],
    }


def empty_produce(side: Side, versions: dict[int, int]) -> dict[str, Any]:
    del versions
    return {
        "name": TOPIC,
        "topic_id": side.topic_id,
        "partition_data": [{"index": 0, "records": b""}],
    }
