"""kafka-python."""

from __future__ import annotations

import sys
import time

import kafka
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
COMMIT_TIMEOUT_MS = 5_000


def consumer_of(bootstrap: str, group: str | None) -> kafka.KafkaConsumer:
    return kafka.KafkaConsumer(
        bootstrap_servers=bootstrap.split(","),
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        check_crcs=True,
    )


def assign(bootstrap: str, topic: str, partitions: str, count: str) -> None:
    consumer, left = consumer_of(bootstrap, None), int(count)
    consumer.assign(
        [kafka.TopicPartition(topic, partition) for partition in range(int(partitions))]
    )
    consumer.seek_to_beginning()
    while left:
        for records in consumer.poll(timeout_ms=500, max_records=min(left, BATCH)).values():
            for each in records:
                tell_record(each.partition, each.offset, each.key, each.value)
            left -= len(records)
    consumer.close(autocommit=False)


def group(bootstrap: str, topic: str, group: str, count: str) -> None:
    consumer, left, stop = consumer_of(bootstrap, group), int(count) or sys.maxsize, stdin_ends()
    behind: dict[int, int] = {}

    class Rebalances(kafka.ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked: object) -> None:
            behind.clear()

        def on_partitions_assigned(self, assigned: list[kafka.TopicPartition]) -> None:
            behind.clear()
            tell("assigned", partitions=[each.partition for each in assigned])

    def commit() -> None:
        if not behind:
            return
        offsets = {
            kafka.TopicPartition(topic, partition): kafka.structs.OffsetAndMetadata(offset, "", -1)
            for partition, offset in behind.items()
        }
        try:
            consumer.commit(offsets, timeout_ms=COMMIT_TIMEOUT_MS)
        except kafka.errors.KafkaError as error:
            complain("commit", error)
            return
        tell("committed", offsets=behind)
        behind.clear()

    consumer.subscribe([topic], listener=Rebalances())
    while left and not stop.is_set():
        for records in consumer.poll(timeout_ms=200, max_records=min(left, BATCH)).values():
            for each in records:
                tell_record(each.partition, each.offset, each.key, each.value)
                behind[each.partition] = each.offset + 1
            left -= len(records)
        commit()
    deadline_s = time.monotonic() + LAST_COMMITS_S
    while behind and time.monotonic() < deadline_s:
        time.sleep(PAUSE_S)
        commit()
    consumer.close(autocommit=False)


def send(bootstrap: str, topic: str, **settings: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap.split(","),
        acks="all",
        enable_idempotence=bool(settings),
        **settings,
    )
    if settings:
        producer.init_transactions()
        producer.begin_transaction()
    producer.send(topic, b"value").get(timeout=60)


def produce(bootstrap: str, topic: str) -> None:
    tell_write(lambda: send(bootstrap, topic), kafka.errors.KafkaError)


def transaction(bootstrap: str, topic: str) -> None:
    tell_write(
        lambda: send(bootstrap, topic, transactional_id="transactions"), kafka.errors.KafkaError
    )


run({"assign": assign, "group": group, "produce": produce, "transaction": transaction})
