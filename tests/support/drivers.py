"""The Python clients behind one small interface, so that every one of them is asked the same
things.

Each function opens a client of its own, uses it as its documentation says, and closes it. Nothing
here knows anything of the gateway.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

import aiokafka
import confluent_kafka
import kafka

from tests.support.kafka_messages import place_of
from tests.support.trips_log import Received

T = TypeVar("T")

READ_TIMEOUT_S = 40.0
"""After this a client is said to have stopped reading."""

LONG_POLL_MS = 30_000
"""How long a fetch of a consumer that is to be woken may wait; the client's own default elsewhere
(half a second: a client's request to a broker on the same connection waits behind its fetch)."""

DEFAULT_POLL_MS = 500


class Driver(Protocol):
    """The questions to a client."""

    def read(
        self,
        bootstrap: str,
        topic: str,
        starts: Mapping[int, int],
        count: int,
        *,
        ready: Callable[[], None] | None = None,
    ) -> list[Received]:
        """``count`` records by assignment, from the given offsets. With ``ready``, which is called
        once it polls, its fetches wait for half a minute."""
        ...

    def read_in_group(self, bootstrap: str, topic: str, group: str, count: int) -> list[Received]:
        """``count`` records as the only member of a group, committing the positions behind them."""
        ...

    def offsets_at(
        self, bootstrap: str, topic: str, timestamp_ms: int, partitions: int
    ) -> dict[int, int | None]:
        """Per partition the first offset at or after the moment; None when there is none."""
        ...

    def produce(self, bootstrap: str, topic: str) -> str:
        """Tries to write one record; the name of the error."""
        ...


class ConfluentDriver:
    def read(
        self,
        bootstrap: str,
        topic: str,
        starts: Mapping[int, int],
        count: int,
        *,
        ready: Callable[[], None] | None = None,
    ) -> list[Received]:
        consumer = self._consumer(
            bootstrap, f"unused-{uuid.uuid4()}", LONG_POLL_MS if ready else DEFAULT_POLL_MS
        )
        try:
            consumer.assign(
                [
                    confluent_kafka.TopicPartition(topic, partition, offset)
                    for partition, offset in starts.items()
                ]
            )
            if ready is not None:
                assert consumer.poll(0.2) is None, "nothing can have come before it was put"
                ready()
            return self._take(consumer, count)
        finally:
            consumer.close()

    def read_in_group(self, bootstrap: str, topic: str, group: str, count: int) -> list[Received]:
        consumer = self._consumer(bootstrap, group)
        try:
            consumer.subscribe([topic])
            received = self._take(consumer, count)
            consumer.commit(
                offsets=_next_offsets(received, confluent_kafka.TopicPartition, topic),
                asynchronous=False,
            )
            return received
        finally:
            consumer.close()

    def offsets_at(
        self, bootstrap: str, topic: str, timestamp_ms: int, partitions: int
    ) -> dict[int, int | None]:
        consumer = self._consumer(bootstrap, "unused")
        try:
            asked = [
                confluent_kafka.TopicPartition(topic, partition, timestamp_ms)
                for partition in range(partitions)
            ]
            found = consumer.offsets_for_times(asked, timeout=READ_TIMEOUT_S)
            return {each.partition: each.offset if each.offset >= 0 else None for each in found}
        finally:
            consumer.close()

    def produce(self, bootstrap: str, topic: str) -> str:
        errors: list[confluent_kafka.KafkaError | None] = []
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "message.timeout.ms": 10_000}
        )
        producer.produce(topic, b"value", on_delivery=lambda error, _: errors.append(error))
        producer.flush(READ_TIMEOUT_S)
        [error] = errors
        assert error is not None, "the gateway took a write"
        return str(error.name())

    @staticmethod
    def _consumer(
        bootstrap: str, group: str, poll_ms: int = DEFAULT_POLL_MS
    ) -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": poll_ms,
                "socket.timeout.ms": poll_ms + 30_000,
                "check.crcs": True,
            }
        )

    @staticmethod
    def _take(consumer: confluent_kafka.Consumer, count: int) -> list[Received]:
        received: list[Received] = []
        deadline = time.monotonic() + READ_TIMEOUT_S
        while len(received) < count and time.monotonic() < deadline:
            for message in consumer.consume(min(count - len(received), 500), timeout=0.1):
                if message.error():
                    raise confluent_kafka.KafkaException(message.error())
                partition, offset = place_of(message)
                received.append(
                    Received(
                        partition,
                        offset,
                        message.timestamp()[1],
                        message.key(),
                        message.value(),
                    )
                )
        return received


class KafkaPythonDriver:
    def read(
        self,
        bootstrap: str,
        topic: str,
        starts: Mapping[int, int],
        count: int,
        *,
        ready: Callable[[], None] | None = None,
    ) -> list[Received]:
        consumer = self._consumer(bootstrap, None, LONG_POLL_MS if ready else DEFAULT_POLL_MS)
        try:
            consumer.assign([kafka.TopicPartition(topic, partition) for partition in starts])
            for partition, offset in starts.items():
                consumer.seek(kafka.TopicPartition(topic, partition), offset)
            if ready is not None:
                assert not consumer.poll(timeout_ms=200), "nothing can have come before it was put"
                ready()
            return self._take(consumer, count)
        finally:
            consumer.close(autocommit=False)

    def read_in_group(self, bootstrap: str, topic: str, group: str, count: int) -> list[Received]:
        consumer = self._consumer(bootstrap, group)
        try:
            consumer.subscribe([topic])
            received = self._take(consumer, count)
            offsets = {
                kafka.TopicPartition(topic, partition): kafka.structs.OffsetAndMetadata(
                    offset, "", -1
                )
                for partition, offset in _behind(received).items()
            }
            consumer.commit(offsets)
            return received
        finally:
            consumer.close(autocommit=False)

    def offsets_at(
        self, bootstrap: str, topic: str, timestamp_ms: int, partitions: int
    ) -> dict[int, int | None]:
        consumer = self._consumer(bootstrap, None)
        try:
            found = consumer.offsets_for_times(
                {
                    kafka.TopicPartition(topic, partition): timestamp_ms
                    for partition in range(partitions)
                }
            )
            return {
                partition: at.offset
                if (at := found[kafka.TopicPartition(topic, partition)])
                else None
                for partition in range(partitions)
            }
        finally:
            consumer.close(autocommit=False)

    def produce(self, bootstrap: str, topic: str) -> str:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=False, acks="all"
        )
        try:
            producer.send(topic, b"value").get(READ_TIMEOUT_S)
        except kafka.errors.KafkaError as error:
            return type(error).__name__
        finally:
            producer.close(5)
        return "written"

    @staticmethod
    def _consumer(
        bootstrap: str, group: str | None, poll_ms: int = DEFAULT_POLL_MS
    ) -> kafka.KafkaConsumer:
        return kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=poll_ms,
            request_timeout_ms=poll_ms + 30_000,
            check_crcs=True,
        )

    @staticmethod
    def _take(consumer: kafka.KafkaConsumer, count: int) -> list[Received]:
        received: list[Received] = []
        deadline = time.monotonic() + READ_TIMEOUT_S
        while len(received) < count and time.monotonic() < deadline:
            for records in consumer.poll(
                timeout_ms=100, max_records=min(count - len(received), 500)
            ).values():
                received += [
                    Received(each.partition, each.offset, each.timestamp, each.key, each.value)
                    for each in records
                ]
        return received


class AiokafkaDriver:
    def read(
        self,
        bootstrap: str,
        topic: str,
        starts: Mapping[int, int],
        count: int,
        *,
        ready: Callable[[], None] | None = None,
    ) -> list[Received]:
        async def run(consumer: aiokafka.AIOKafkaConsumer) -> list[Received]:
            consumer.assign([aiokafka.TopicPartition(topic, partition) for partition in starts])
            for partition, offset in starts.items():
                consumer.seek(aiokafka.TopicPartition(topic, partition), offset)
            if ready is not None:
                await asyncio.sleep(0.2)
                ready()
            return await self._take(consumer, count)

        return self._with_consumer(
            bootstrap, None, [], run, LONG_POLL_MS if ready else DEFAULT_POLL_MS
        )

    def read_in_group(self, bootstrap: str, topic: str, group: str, count: int) -> list[Received]:
        async def run(consumer: aiokafka.AIOKafkaConsumer) -> list[Received]:
            received = await self._take(consumer, count)
            await consumer.commit(
                {
                    aiokafka.TopicPartition(topic, partition): offset
                    for partition, offset in _behind(received).items()
                }
            )
            return received

        return self._with_consumer(bootstrap, group, [topic], run)

    def offsets_at(
        self, bootstrap: str, topic: str, timestamp_ms: int, partitions: int
    ) -> dict[int, int | None]:
        async def run(consumer: aiokafka.AIOKafkaConsumer) -> dict[int, int | None]:
            found = await consumer.offsets_for_times(
                {
                    aiokafka.TopicPartition(topic, partition): timestamp_ms
                    for partition in range(partitions)
                }
            )
            return {
                partition: at.offset
                if (at := found[aiokafka.TopicPartition(topic, partition)])
                else None
                for partition in range(partitions)
            }

        return self._with_consumer(bootstrap, None, [], run)

    def produce(self, bootstrap: str, topic: str) -> str:
        async def run() -> str:
            producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap)
            await producer.start()
            try:
                await producer.send_and_wait(topic, b"value")
            except aiokafka.errors.KafkaError as error:
                return type(error).__name__
            finally:
                await producer.stop()
            return "written"

        return asyncio.run(run())

    @staticmethod
    def _with_consumer(
        bootstrap: str,
        group: str | None,
        topics: list[str],
        use: Callable[[Any], Coroutine[Any, Any, T]],
        poll_ms: int = DEFAULT_POLL_MS,
    ) -> T:
        async def run() -> T:
            consumer = aiokafka.AIOKafkaConsumer(
                *topics,
                bootstrap_servers=bootstrap,
                group_id=group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                fetch_max_wait_ms=poll_ms,
                request_timeout_ms=poll_ms + 30_000,
                check_crcs=True,
            )
            await consumer.start()
            try:
                return await use(consumer)
            finally:
                await consumer.stop()

        return asyncio.run(run())

    @staticmethod
    async def _take(consumer: aiokafka.AIOKafkaConsumer, count: int) -> list[Received]:
        received: list[Received] = []
        deadline = time.monotonic() + READ_TIMEOUT_S
        while len(received) < count and time.monotonic() < deadline:
            for records in (
                await consumer.getmany(timeout_ms=100, max_records=count - len(received))
            ).values():
                received += [
                    Received(each.partition, each.offset, each.timestamp, each.key, each.value)
                    for each in records
                ]
        return received


def _behind(received: list[Received]) -> dict[int, int]:
    return {each.partition: each.offset + 1 for each in received}


def _next_offsets(
    received: list[Received], make: Callable[[str, int, int], Any], topic: str
) -> list[Any]:
    return [make(topic, partition, offset) for partition, offset in _behind(received).items()]


DRIVERS: dict[str, Driver] = {
    "confluent-kafka": ConfluentDriver(),
    "kafka-python": KafkaPythonDriver(),
    "aiokafka": AiokafkaDriver(),
}
