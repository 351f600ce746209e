"""The answers to Kafka programs that make topics, change settings, write, or speak the newest
consumer protocol: a refusal at once. None of them waits, and nothing is changed."""

from __future__ import annotations

from typing import Any, Final
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tests.support.running_gateway import GatewayProcess
from tests.support.trips_log import SHARDS

pytestmark = pytest.mark.integration

ANSWER_TIMEOUT_S: Final = 60.0


@pytest.fixture
def admin(gateway: GatewayProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": gateway.bootstrap, "log_level": 0})


def refusal(futures: dict[Any, Any]) -> KafkaError:
    [future] = futures.values()
    with pytest.raises(KafkaException) as caught:
        future.result(ANSWER_TIMEOUT_S)
    error = caught.value.args[0]
    assert isinstance(error, KafkaError)
    return error


def test_topics_are_neither_made_nor_deleted_nor_widened(admin: AdminClient) -> None:
    for futures in (
        admin.create_topics([NewTopic("mine", 1, 1)]),
        admin.delete_topics(["trips"]),
        admin.create_partitions([NewPartitions("trips", SHARDS + 1)]),
    ):
        error = refusal(futures)
        assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert "the gateway's configuration declares them" in error.str(), "what the last one was told"
    topics = admin.list_topics(timeout=ANSWER_TIMEOUT_S).topics
    assert "mine" not in topics
    assert len(topics["trips"].partitions) == SHARDS


def test_settings_can_be_carried_over_and_not_changed(admin: AdminClient) -> None:
    """MirrorMaker gives a mirror the settings of a topic that are set for it and not read-only."""
    topic = ConfigResource(ConfigResource.Type.TOPIC, "trips")
    settings = admin.describe_configs([topic])[topic].result(ANSWER_TIMEOUT_S)
    assert not settings["retention.ms"].is_read_only
    entry = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ConfigResource.Type.TOPIC, "trips", incremental_configs=[entry])
    error = refusal(admin.incremental_alter_configs([changed]))
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert "gateway's configuration" in error.str()


def test_rights_are_not_given_through_the_protocol(admin: AdminClient) -> None:
    right = AclBinding(
        ResourceType.TOPIC,
        "trips",
        ResourcePatternType.LITERAL,
        "User:me",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    error = refusal(admin.create_acls([right]))
    assert error.code() == KafkaError.SECURITY_DISABLED
    assert "cellfeed users" in error.str()


def test_an_idempotent_producer_has_its_id_and_each_write_is_refused(
    gateway: GatewayProcess,
) -> None:
    """Frameworks make one at their start, and may never write."""
    fatal: list[KafkaError] = []
    settings: dict[str, Any] = {
        "bootstrap.servers": gateway.bootstrap,
        "enable.idempotence": True,
        "log_level": 0,
        "error_cb": fatal.append,
    }
    refused: list[int] = []
    producer = Producer(settings)
    producer.produce(
        "trips",
        b"x",
        partition=0,
        on_delivery=lambda error, _: refused.append(error.code() if error else 0),
    )
    assert producer.flush(ANSWER_TIMEOUT_S) == 0
    assert refused == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    assert not [error for error in fatal if error.fatal()]


def test_the_newest_consumer_protocol_is_refused_at_once(gateway: GatewayProcess) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": gateway.bootstrap,
            "group.id": f"newest-{uuid4()}",
            "group.protocol": "consumer",
            "log_level": 0,
        }
    )
    try:
        consumer.subscribe(["trips"])
        message = consumer.poll(ANSWER_TIMEOUT_S)
        assert message is not None, "it waited in silence"
        error = message.error()
        assert error is not None
        assert error.code() == KafkaError._FATAL
        assert "API version not supported" in error.str()
    finally:
        consumer.close()
