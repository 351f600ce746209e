"""aiokafka."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import aiokafka
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
COMMIT_TIMEOUT_S = 5.0


def consumer_of(bootstrap: str, group: str | None) -> aiokafka.AIOKafkaConsumer:
    return aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        check_crcs=True,
    )


async def assign(bootstrap: str, topic: str, partitions: str, count: str) -> None:
    consumer, left = consumer_of(bootstrap, None), int(count)
    await consumer.start()
    consumer.assign(
        [aiokafka.TopicPartition(topic, partition) for partition in range(int(partitions))]
    )
    await consumer.seek_to_beginning()
    while left:
        for records in (
            await consumer.getmany(timeout_ms=500, max_records=min(left, BATCH))
        ).values():
            for each in records:
                tell_record(each.partition, each.offset, each.key, each.value)
            left -= len(records)
    await consumer.stop()


async def group(bootstrap: str, topic: str, group: str, count: str) -> None:
    consumer, left, stop = consumer_of(bootstrap, group), int(count) or sys.maxsize, stdin_ends()
    behind: dict[int, int] = {}

    class Rebalances(aiokafka.ConsumerRebalanceListener):
        async def on_partitions_revoked(self, revoked: object) -> None:
            behind.clear()

        async def on_partitions_assigned(self, assigned: list[aiokafka.TopicPartition]) -> None:
            behind.clear()
            tell("assigned", partitions=[each.partition for each in assigned])

    async def commit() -> None:
        told = dict(behind)
        if not told:
            return
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT_S):
                await consumer.commit(
                    {
                        aiokafka.TopicPartition(topic, partition): offset
                        for partition, offset in told.items()
                    }
                )
        except (aiokafka.errors.KafkaError, TimeoutError) as error:
            complain("commit", error)
            return
        tell("committed", offsets=told)
        for partition, offset in told.items():
            if behind.get(partition) == offset:
                del behind[partition]

    await consumer.start()
    consumer.subscribe([topic], listener=Rebalances())
    while left and not stop.is_set():
        for records in (
            await consumer.getmany(timeout_ms=200, max_records=min(left, BATCH))
        ).values():
            for each in records:
                tell_record(each.partition, each.offset, each.key, each.value)
                behind[each.partition] = each.offset + 1
            left -= len(records)
        await commit()
    deadline_s = time.monotonic() + LAST_COMMITS_S
    while behind and time.monotonic() < deadline_s:
        await asyncio.sleep(PAUSE_S)
        await commit()
    await consumer.stop()


async def send(bootstrap: str, topic: str, **settings: str) -> None:
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, **settings)
    await producer.start()
    try:
        if settings:
            await producer.begin_transaction()
        await producer.send_and_wait(topic, b"value")
    finally:
        await producer.stop()


def produce(bootstrap: str, topic: str) -> None:
    tell_write(lambda: asyncio.run(send(bootstrap, topic)), aiokafka.errors.KafkaError)


def transaction(bootstrap: str, topic: str) -> None:
    tell_write(
        lambda: asyncio.run(send(bootstrap, topic, transactional_id="transactions")),
        aiokafka.errors.KafkaError,
    )


def blocking(mode: Any) -> Any:
    return lambda *words: asyncio.run(mode(*words))


run(
    {
        "assign": blocking(assign),
        "group": blocking(group),
        "produce": produce,
        "transaction": transaction,
    }
)
