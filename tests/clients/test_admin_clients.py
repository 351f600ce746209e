"""Requests of tools that list and read a cluster (kafka-ui, AKHQ and Kafdrop, with the Java
client), sent with clients in Python."""

from __future__ import annotations

from typing import Any, Final

import kafka
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    ConfigSource,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from tests.support.raw_requests import ask, encoded
from tests.support.running_gateway import GatewayProcess
from tests.support.trips_log import SHARDS, Received

ANYTHING: Any = None
"""In a filter of ACLs: the types of confluent-kafka want a text."""
pytestmark = pytest.mark.integration

ANSWER_TIMEOUT_S: Final = 60.0
LOG_DIRS: Final = 35


def test_every_page_of_a_tool_that_lists_and_reads_is_answered(
    gateway: GatewayProcess, expected: dict[str, list[Received]]
) -> None:
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap, "log_level": 0})
    cluster = admin.describe_cluster(
        include_authorized_operations=True, request_timeout=ANSWER_TIMEOUT_S
    ).result(ANSWER_TIMEOUT_S)
    [node] = cluster.nodes
    assert cluster.controller.id == node.id

    listed = admin.list_topics(timeout=ANSWER_TIMEOUT_S).topics
    assert set(listed) == set(expected)
    [described] = admin.describe_topics(
        TopicCollection(["trips"]), include_authorized_operations=True
    ).values()
    assert [each.leader.id for each in described.result(ANSWER_TIMEOUT_S).partitions] == [
        node.id
    ] * SHARDS

    resources = [
        ConfigResource(ConfigResource.Type.BROKER, str(node.id)),
        ConfigResource(ConfigResource.Type.TOPIC, "trips"),
    ]
    of_broker, of_topic = (
        admin.describe_configs([each])[each].result(ANSWER_TIMEOUT_S) for each in resources
    )
    assert of_broker["advertised.listeners"].value == f"PLAINTEXT://{gateway.bootstrap}"
    assert of_topic["retention.ms"].value == "-1"
    assert [
        name for name, each in of_topic.items() if each.source != ConfigSource.DEFAULT_CONFIG.value
    ] == ["retention.ms"], "tools show what is no default"

    ends = admin.list_offsets(
        {
            TopicPartition("trips", partition): OffsetSpec.latest()  # type: ignore[no-untyped-call]
            for partition in range(SHARDS)
        }
    )
    told = {
        partition.partition: end.result(ANSWER_TIMEOUT_S).offset for partition, end in ends.items()
    }
    assert told == {
        partition: sum(each.partition == partition for each in expected["trips"])
        for partition in range(SHARDS)
    }

    wanted = AclBindingFilter(
        ResourceType.ANY,
        ANYTHING,
        ResourcePatternType.ANY,
        ANYTHING,
        ANYTHING,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert (
        admin.describe_acls(wanted, request_timeout=ANSWER_TIMEOUT_S).result(ANSWER_TIMEOUT_S) == []
    ), "librdkafka names no security as of no ACLs"


def test_a_group_is_listed_with_its_offsets(gateway: GatewayProcess) -> None:
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap, "log_level": 0})
    committed = ConsumerGroupTopicPartitions("shown-by-tools", [TopicPartition("trips", 1, 7)])
    admin.alter_consumer_group_offsets([committed])["shown-by-tools"].result(ANSWER_TIMEOUT_S)
    groups = admin.list_consumer_groups(request_timeout=ANSWER_TIMEOUT_S).result(ANSWER_TIMEOUT_S)
    assert not groups.errors
    assert "shown-by-tools" in {each.group_id for each in groups.valid}
    described = admin.describe_consumer_groups(["shown-by-tools"])["shown-by-tools"].result(
        ANSWER_TIMEOUT_S
    )
    assert described.state.name == "EMPTY"
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("shown-by-tools")])[
        "shown-by-tools"
    ].result(ANSWER_TIMEOUT_S)
    assert [(each.topic, each.partition, each.offset) for each in found.topic_partitions] == [
        ("trips", 1, 7)
    ]


def kept(port: int, topics: list[dict[str, Any]] | None) -> dict[tuple[str, int], int]:
    answer = ask(port, LOG_DIRS, 4, encoded(LOG_DIRS, 4, {"topics": topics}))
    [memory] = answer.results
    assert memory.total_bytes >= memory.usable_bytes > 0
    return {
        (topic.name, each.partition_index): each.partition_size
        for topic in memory.topics
        for each in topic.partitions
    }


def test_the_size_of_a_partition_is_that_of_its_kept_blocks(own_gateway: GatewayProcess) -> None:
    nothing = {("trips.NOTES", partition): 0 for partition in range(SHARDS)}
    wanted = [{"topic": "trips.NOTES", "partitions": list(range(SHARDS))}]
    assert kept(own_gateway.port, wanted) == nothing
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=own_gateway.bootstrap, group_id=None, auto_offset_reset="earliest"
    )
    try:
        consumer.assign([kafka.TopicPartition("trips.NOTES", 3)])
        while not any(map(len, consumer.poll(timeout_ms=500).values())):
            pass
    finally:
        consumer.close()
    after = kept(own_gateway.port, wanted)
    assert after["trips.NOTES", 3] > 0
    assert {key for key, size in after.items() if size} == {("trips.NOTES", 3)}
    assert kept(
        own_gateway.port,
        [{"topic": "trips.NOTES", "partitions": [3, SHARDS]}, {"topic": "none", "partitions": [0]}],
    ) == {("trips.NOTES", 3): after["trips.NOTES", 3]}
    by_itself = kafka.KafkaAdminClient(bootstrap_servers=own_gateway.bootstrap)
    try:
        assert by_itself.describe_log_dirs()
    finally:
        by_itself.close()
