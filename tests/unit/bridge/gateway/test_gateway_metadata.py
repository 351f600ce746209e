"""The answer to Metadata: prepared bytes are the bytes that kio writes, and are prepared again when
their content changes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.wire.metadata_answer import MetadataPartitions, write_metadata
from cellfeed.bridge.gateway.wire.protocol import RequestHead, write_response

EPOCHS = {0: 4, 1: 0, 2: 9}


def partitions(leaders: tuple[int, ...], nodes: list[int]) -> list[dict[str, Any]]:
    return [
        {
            "error_code": ErrorCode.none,
            "partition_index": shard,
            "leader_id": leader,
            "leader_epoch": EPOCHS[shard],
            "replica_nodes": nodes,
            "isr_nodes": nodes,
            "offline_replicas": [],
        }
        for shard, leader in enumerate(leaders)
    ]


def topic(name: str, error: ErrorCode) -> dict[str, Any]:
    return {
        "error_code": error,
        "name": name,
        "topic_id": UUID(int=7),
        "is_internal": False,
        "topic_authorized_operations": -(1 << 31),
    }


@pytest.mark.parametrize("version", range(14))
@pytest.mark.parametrize("nodes", [[1], [1, 2, 200]])
def test_prepared_partitions_equal_the_encoding_of_the_protocols_schema(
    version: int, nodes: list[int]
) -> None:
    leaders = (1, 2, 1)
    answer = {
        "throttle_time": 0,
        "brokers": [{"node_id": 1, "host": "here", "port": 9092, "rack": None}],
        "cluster_id": "c",
        "controller_id": 1,
        "cluster_authorized_operations": -(1 << 31),
        "error_code": ErrorCode.none,
    }
    head = RequestHead(3, version, 77, "client", 0)
    known, unknown = (
        topic("trips", ErrorCode.none),
        topic("x", ErrorCode.unknown_topic_or_partition),
    )
    prepared = MetadataPartitions().of(version, leaders, nodes, 0, EPOCHS.__getitem__)
    assert write_metadata(head, answer, [(known, prepared), (unknown, [])]) == write_response(
        head,
        {
            **answer,
            "topics": [
                {**known, "partitions": partitions(leaders, nodes)},
                {**unknown, "partitions": []},
            ],
        },
    )


def test_partitions_are_prepared_once_until_their_content_changes() -> None:
    found = MetadataPartitions()
    epochs = dict(EPOCHS)
    leaders = (1, 2, 1)

    def of(
        leaders: tuple[int, ...], nodes: list[int], changes: int, version: int = 9
    ) -> list[bytes]:
        return found.of(version, leaders, nodes, changes, epochs.__getitem__)

    first = of(leaders, [1, 2], 0)
    assert of(leaders, [1, 2], 0) is first
    assert of(leaders, [1, 2], 0, version=8) != first
    epochs[1] = 5
    with_epoch = of(leaders, [1, 2], 1)
    assert with_epoch[1] != first[1]
    assert with_epoch[::2] == first[::2]
    assert of(leaders, [1, 2, 3], 1) != with_epoch
    moved = (2, 2, 1)
    assert of(moved, [1, 2], 1)[0] != with_epoch[0]
    assert of(leaders, [1, 2], 1) == with_epoch
