"""Members of a consumer group by other clients than confluent-kafka: kafka-python and aiokafka.
They tell their generation, too."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import aiokafka
import kafka
from aiokafka.abc import ConsumerRebalanceListener as AiokafkaListener
from kafka.consumer.subscription_state import TopicPartitionState
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from tests.faults.group_members import COMMIT_TIMEOUT_MS, GroupLedger, GroupMember, Member

for _client in ("kafka", "aiokafka"):
    logging.getLogger(_client).setLevel(
        logging.CRITICAL + 1
    )  # the run itself kills gateways, so that is no news

_SESSION_TIMEOUT_MS = 6_000
_HEARTBEAT_MS = 300
_AWAY = (
    "NodeNotReady",
    "KafkaConnection",
    "KafkaTimeout",
    "RequestTimedOut",
    "Coordinator",
    "CommitFailed",
    "RebalanceInProgress",
    "UnknownMember",
    "IllegalGeneration",
    "NoBrokersAvailable",
    "Timeout",
    "Cancelled",
    "Connection",
    "IllegalState",
)
"""The errors, by name, of a member whose gateway is gone, or that has to join again."""


class _PythonMember(Member):
    """A member with a consumer of a Python library."""

    def __init__(
        self, bootstrap: str, topic: str, group: str, name: str, ledger: GroupLedger
    ) -> None:
        super().__init__(name, ledger)
        self._topic = topic
        self._servers = bootstrap
        self._group = group
        self._consumer: Any = None


class _Noting(kafka.ConsumerRebalanceListener):
    def __init__(self, member: KafkaPythonMember) -> None:
        self._member = member

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._member._was_revoked([each.partition for each in revoked])

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._member._assigned([each.partition for each in assigned])


class KafkaPythonMember(_PythonMember):
    """kafka-python: everything in one thread, its heartbeats in another."""

    def run(self) -> None:
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=self._servers.split(","),
            group_id=self._group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=_SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=_HEARTBEAT_MS,
            request_timeout_ms=10_000,
            reconnect_backoff_max_ms=300,
            fetch_max_wait_ms=100,
            partition_assignment_strategy=[RoundRobinPartitionAssignor],
        )
        self._consumer.subscribe([self._topic], listener=_Noting(self))
        while not self._ended.is_set():
            try:
                for records in self._consumer.poll(timeout_ms=100, max_records=40).values():
                    for record in records:
                        self._received(record.partition, record.offset, record.value)
                offsets = self._to_commit()
                if offsets:
                    self._consumer.commit(
                        {
                            kafka.TopicPartition(self._topic, each): kafka.OffsetAndMetadata(
                                offset, "", -1
                            )
                            for each, offset in offsets.items()
                        },
                        COMMIT_TIMEOUT_MS,
                    )
                    self._ledger.raise_to(self._ledger.acknowledged, offsets)
            except Exception as error:
                _tell(self._ledger, self.name, error)
        self._consumer.close(autocommit=False)

    def stop(self) -> None:
        self._ended.set()
        self.join(30)

    def _assigned(self, partitions: list[int]) -> None:
        # A fetch of offsets that was not waited for to its end is kept, by its set of partitions
        # alone: anybody who is given the same ones again, generations later, would begin where the
        # group was then.
        self._consumer._coordinator._offset_fetch_futures.clear()
        # Its position in a partition that it had before is kept, too, over any number of
        # generations that it missed: in one of them another member may have had the partition and
        # committed more. Without a position it asks the group, so it begins where the gateway says.
        positions = self._consumer._subscription.assignment
        positions.update({each: TopicPartitionState() for each in positions})
        self._was_given(partitions)
        self._ledger.given(
            self.name, self._consumer._coordinator._generation.generation_id, partitions
        )


class _NotingAiokafka(AiokafkaListener):
    def __init__(self, member: AiokafkaMember) -> None:
        self._member = member

    async def on_partitions_revoked(self, revoked: Any) -> None:
        # aiokafka tries a commit again and again, in the next generation too, when the partition
        # may be another member's, which is further on.
        if self._member._committing is not None:
            self._member._committing.cancel()
            await asyncio.wait([self._member._committing])
        self._member._was_revoked([each.partition for each in revoked])

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self._member._assigned([each.partition for each in assigned])


class AiokafkaMember(_PythonMember):
    """aiokafka, in an event loop of its own."""

    _committing: asyncio.Future[None] | None = None

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self._servers,
            group_id=self._group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=_SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=_HEARTBEAT_MS,
            request_timeout_ms=10_000,
            retry_backoff_ms=100,
            fetch_max_wait_ms=100,
        )
        self._consumer.subscribe([self._topic], listener=_NotingAiokafka(self))
        await self._consumer.start()
        try:
            while not self._ended.is_set():
                try:
                    for records in (
                        await self._consumer.getmany(timeout_ms=100, max_records=40)
                    ).values():
                        for record in records:
                            self._received(record.partition, record.offset, record.value)
                    offsets = self._to_commit()
                    if offsets:
                        commit = self._consumer.commit(
                            {
                                aiokafka.TopicPartition(self._topic, each): offset
                                for each, offset in offsets.items()
                            }
                        )
                        self._committing = asyncio.ensure_future(commit)
                        await asyncio.wait_for(self._committing, COMMIT_TIMEOUT_MS / 1000)
                        self._ledger.raise_to(self._ledger.acknowledged, offsets)
                except (Exception, asyncio.CancelledError) as error:
                    _tell(self._ledger, self.name, error)
        finally:
            await self._consumer.stop()

    def stop(self) -> None:
        self._ended.set()
        self.join(30)

    def _assigned(self, partitions: list[int]) -> None:
        self._was_given(partitions)
        self._ledger.given(self.name, self._consumer._coordinator.generation, partitions)


def _tell(ledger: GroupLedger, name: str, error: BaseException) -> None:
    ledger.failed_commits += 1
    if not any(word in type(error).__name__ for word in _AWAY):
        ledger.errors.append(f"{name}: {type(error).__name__}: {error}")


def _confluent(bootstrap: str, topic: str, group: str, name: str, ledger: GroupLedger) -> Member:
    return GroupMember(bootstrap, topic, group, name, ledger, strategy="roundrobin")


MEMBERS: dict[str, Callable[[str, str, str, str, GroupLedger], Member]] = {
    "confluent-kafka": _confluent,
    "kafka-python": KafkaPythonMember,
    "aiokafka": AiokafkaMember,
}
"""Clients that can be in one group: all of them deal partitions out in turn."""
