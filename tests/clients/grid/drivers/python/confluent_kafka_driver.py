"""confluent-kafka (librdkafka)."""

from __future__ import annotations

import sys
import time
import uuid

import confluent_kafka
from lines import (
    HEARTBEAT_MS,
    LAST_COMMITS_S,
    PAUSE_S,
    SESSION_TIMEOUT_MS,
    complain,
    run,
    stdin_ends,
    tell,
    tell_record,
    tell_write,
)

BATCH = 500


def consumer_of(bootstrap: str, group: str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "check.crcs": True,
        }
    )


def assign(bootstrap: str, topic: str, partitions: str, count: str) -> None:
    consumer, left = consumer_of(bootstrap, f"unused-{uuid.uuid4()}"), int(count)
    consumer.assign(
        [
            confluent_kafka.TopicPartition(topic, partition, 0)
            for partition in range(int(partitions))
        ]
    )
    while left:
        for message in consumer.consume(min(left, BATCH), timeout=PAUSE_S):
            if message.error():
                raise confluent_kafka.KafkaException(message.error())
            tell_record(message.partition(), message.offset(), message.key(), message.value())
            left -= 1
    consumer.close()


def group(bootstrap: str, topic: str, group: str, count: str) -> None:
    consumer, left, stop = consumer_of(bootstrap, group), int(count) or sys.maxsize, stdin_ends()
    behind: dict[int, int] = {}

    def assigned(_: object, partitions: list[confluent_kafka.TopicPartition]) -> None:
        behind.clear()
        tell("assigned", partitions=[each.partition for each in partitions])

    def commit() -> None:
        if not behind:
            return
        try:
            done = consumer.commit(
                offsets=[confluent_kafka.TopicPartition(topic, *each) for each in behind.items()],
                asynchronous=False,
            )
        except confluent_kafka.KafkaException as error:
            complain("commit", error)
            return
        committed = {each.partition: each.offset for each in done if each.error is None}
        for partition in committed:
            del behind[partition]
        tell("committed", offsets=committed)

    consumer.subscribe(
        [topic],
        on_assign=assigned,
        on_revoke=lambda *_: behind.clear(),
        on_lost=lambda *_: behind.clear(),
    )
    while left and not stop.is_set():
        for message in consumer.consume(min(left, BATCH), timeout=PAUSE_S):
            if message.error():
                complain("consume", message.error())
                continue
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            tell_record(partition, offset, message.key(), message.value())
            behind[partition] = offset + 1
            left -= 1
        commit()
    deadline_s = time.monotonic() + LAST_COMMITS_S
    while behind and time.monotonic() < deadline_s:
        time.sleep(PAUSE_S)
        commit()
    consumer.close()


def produce(bootstrap: str, topic: str) -> None:
    def write() -> None:
        errors: list[confluent_kafka.KafkaError | None] = []
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
        producer.produce(topic, b"value", on_delivery=lambda error, _: errors.append(error))
        producer.flush()
        if error := errors[0]:
            raise confluent_kafka.KafkaException(error)

    tell_write(write, confluent_kafka.KafkaException)


def transaction(bootstrap: str, topic: str) -> None:
    def write() -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": "transactions"}
        )
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(topic, b"value")
        producer.commit_transaction()

    tell_write(write, confluent_kafka.KafkaException)


run({"assign": assign, "group": group, "produce": produce, "transaction": transaction})
