"""A log that was trimmed, as other people's Kafka clients find it: below its start they get
OFFSET_OUT_OF_RANGE and follow their reset policy."""

from __future__ import annotations

import time
from pathlib import Path

import confluent_kafka
import kafka
import pytest
from kafka.errors import OffsetOutOfRangeError

from cellfeed.store.datastore import Datastore
from tests.support.running_gateway import GatewayProcess

pytestmark = pytest.mark.integration

PARTITION = 3
READ_S = 40.0


@pytest.fixture
def ends(own_gateway: GatewayProcess, tmp_path: Path) -> tuple[int, int]:
    """Where the partition's log starts and ends, after it was trimmed by another process while the
    gateway runs, and had kept all of it."""
    assert own_gateway.port
    read = confluent(own_gateway, "before", "error", 0)
    with Datastore.open_embedded(tmp_path / "store") as datastore:
        end = datastore.heads()[PARTITION].watermark
        assert end > 100
        assert [message.offset() for message in consumed(read, end)] == list(range(end))
        while datastore.trim(PARTITION, 60) < 60:
            pass
    return 60, end


def confluent(
    gateway: GatewayProcess, group: str, reset: str, offset: int
) -> confluent_kafka.Consumer:
    settings = {
        "bootstrap.servers": gateway.bootstrap,
        "group.id": group,
        "auto.offset.reset": reset,
        "enable.auto.commit": False,
        "log_level": 0,
    }
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition("trips", PARTITION, offset)])
    return consumer


def consumed(consumer: confluent_kafka.Consumer, count: int) -> list[confluent_kafka.Message]:
    """So many messages, errors among them; closes the consumer."""
    found: list[confluent_kafka.Message] = []
    deadline_s = time.monotonic() + READ_S
    try:
        while len(found) < count:
            assert time.monotonic() < deadline_s, f"{len(found)} of {count} messages came"
            found += consumer.consume(count - len(found), 0.2)
    finally:
        consumer.close()
    return found


def test_librdkafka_below_the_start_follows_its_policy(
    own_gateway: GatewayProcess, ends: tuple[int, int]
) -> None:
    start, end = ends
    found = consumed(confluent(own_gateway, "earliest", "earliest", 5), end - start)
    assert [message.offset() for message in found] == list(range(start, end))
    assert not any(message.error() for message in found)
    [told] = consumed(confluent(own_gateway, "error", "error", start - 1), 1)
    error = told.error()
    assert error is not None
    assert error.code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET
    assert "out of range" in str(error).lower()
    consumer = confluent(own_gateway, "moments", "error", start)
    try:
        asked = [
            confluent_kafka.TopicPartition("trips", partition, 0) for partition in (0, PARTITION)
        ]
        assert [each.offset for each in consumer.offsets_for_times(asked, timeout=READ_S)] == [
            0,
            start,
        ]
        assert consumer.get_watermark_offsets(asked[1], timeout=READ_S) == (start, end)
    finally:
        consumer.close()


def test_kafka_python_below_the_start_follows_its_policy(
    own_gateway: GatewayProcess, ends: tuple[int, int]
) -> None:
    start, end = ends
    for reset in ("none", "earliest"):
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=own_gateway.bootstrap,
            auto_offset_reset=reset,
            group_id=None,
            enable_auto_commit=False,
        )
        try:
            place = kafka.TopicPartition("trips", PARTITION)
            consumer.assign([place])
            consumer.seek(place, 5)
            offsets: list[int] = []
            told = False
            deadline_s = time.monotonic() + READ_S
            while len(offsets) < end - start and not told:
                assert time.monotonic() < deadline_s, f"{len(offsets)} records came"
                try:
                    offsets += [
                        record.offset
                        for records in consumer.poll(500).values()
                        for record in records
                    ]
                except OffsetOutOfRangeError:
                    told = True
            assert (told, offsets) == (
                (True, []) if reset == "none" else (False, list(range(start, end)))
            )
            assert consumer.beginning_offsets([place]) == {place: start}
        finally:
            consumer.close()


def test_a_group_that_had_committed_below_the_start_follows_its_policy(
    own_gateway: GatewayProcess, tmp_path: Path
) -> None:
    """Its commit does not count as reading: the trim was done although the group needed the
    cells."""
    settings = {
        "bootstrap.servers": own_gateway.bootstrap,
        "group.id": "slow",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    first = confluent_kafka.Consumer(settings)
    first.commit(
        offsets=[confluent_kafka.TopicPartition("trips", PARTITION, 10)], asynchronous=False
    )
    first.close()
    with Datastore.open_embedded(tmp_path / "store") as datastore:
        end = datastore.heads()[PARTITION].watermark
        while datastore.trim(PARTITION, end - 5) < end - 5:
            pass
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe(["trips"])
    offsets: list[int | None] = []
    deadline_s = time.monotonic() + READ_S
    try:
        while len(offsets) < 5:
            assert time.monotonic() < deadline_s, f"only {offsets} came"
            offsets += [
                message.offset()
                for message in consumer.consume(500, 0.2)
                if message.partition() == PARTITION and not message.error()
            ]
    finally:
        consumer.close()
    assert offsets == list(range(end - 5, end))
