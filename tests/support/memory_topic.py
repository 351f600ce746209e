"""A Kafka topic in memory, for the steps of an export without a broker: its committed records, a
consumer that reads them as confluent-kafka gives them, and a stand-in for a unit's producers.

A commit takes an offset of its own in each partition that it wrote, as Kafka's marks do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from cellfeed.bridge.events.record_headers import ADDED_ID, Headers
from cellfeed.bridge.export.records import OutRecord

TOPIC_ID: Final = "topic-id"
FENCED: Final = KafkaError(KafkaError._FENCED, "a later producer is there", fatal=True)


class Message:
    """A record, or the client's word about a partition in its place."""

    def __init__(
        self,
        partition: int,
        offset: int,
        record: OutRecord | None = None,
        error: KafkaError | None = None,
    ) -> None:
        self._partition, self._offset, self.record, self._error = partition, offset, record, error

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return self._error

    def key(self) -> bytes | str | None:
        assert self.record is not None
        return self.record.key

    def value(self) -> bytes | None:
        assert self.record is not None
        return self.record.value

    def headers(self) -> Headers:
        assert self.record is not None
        own = [(ADDED_ID, b"%d" % self.record.added_id)] if self.record.added_id >= 0 else []
        return [*own, *self.record.shared]

    def timestamp(self) -> tuple[int, int]:
        assert self.record is not None
        return 1, self.record.timestamp_ms


@dataclass
class MemoryTopic:
    """``records``: by partition, a record for each offset, None where a mark is. ``epoch``: of the
    newest producer. ``fails``: the errors that the next calls of a producer raise, by their
    name."""

    partitions: int
    records: dict[int, list[OutRecord | None]] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
    epoch: int = 0
    transactions: int = 0
    fails: dict[str, list[Exception]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    on_commit: Callable[[], None] = lambda: None
    topic_id: str = TOPIC_ID

    def __post_init__(self) -> None:
        for partition in range(self.partitions):
            self.records.setdefault(partition, [])

    def ids(self, partition: int) -> list[int]:
        """The added_ids of a partition, in its order."""
        return [record.added_id for record in self.records[partition] if record is not None]

    def append(self, record: OutRecord) -> None:
        """A record of a transaction by itself."""
        self.records[record.shard] += [record, None]

    def fail(self, call: str, *errors: Exception) -> None:
        self.fails.setdefault(call, []).extend(errors)

    def wait(self, ends: Mapping[int, int]) -> None:
        """As :class:`cellfeed.bridge.export.shown_ends.Shown`: here a commit is seen at once."""
        assert all(len(self.records[each]) >= end for each, end in ends.items())
        if self.fails.get("shown"):
            raise self.fails["shown"].pop(0)

    def consumer(self, *_: object) -> MemoryConsumer:
        return MemoryConsumer(self)

    def called(self, call: str) -> None:
        self.calls.append(call)
        if self.fails.get(call):
            raise self.fails[call].pop(0)


class MemoryConsumer:
    """Reads committed records of the partitions that it was given, and says once where each ends.
    ``errors`` come first."""

    def __init__(self, topic: MemoryTopic, errors: Sequence[Message] = ()) -> None:
        self._topic = topic
        self._next: dict[int, int] = {}
        self._queue: list[Message] = list(errors)
        self.assigned: list[dict[int, int]] = []
        self.is_closed = False

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        assert timeout > 0
        start = self._topic.starts.get(partition.partition, 0)
        return start, len(self._topic.records[partition.partition])

    def offsets_for_times(
        self, wanted: Sequence[TopicPartition], timeout: float
    ) -> list[TopicPartition]:
        """The first offsets, and the ones behind the last records (-2 and -1)."""
        assert timeout > 0
        topic = self._topic
        return [
            TopicPartition(
                each.topic,
                each.partition,
                topic.starts.get(each.partition, 0)
                if each.offset == -2
                else len(topic.records[each.partition]),
            )
            for each in wanted
        ]

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.assigned.append({each.partition: each.offset for each in partitions})
        for place in partitions:
            records = self._topic.records[place.partition]
            self._queue += [
                Message(place.partition, offset, records[offset])
                for offset in range(place.offset, len(records))
                if records[offset] is not None
            ]
            self._queue.append(
                Message(
                    place.partition,
                    len(records),
                    error=KafkaError(KafkaError._PARTITION_EOF),
                )
            )

    def unassign(self) -> None:
        self._queue = []

    def poll(self, _wait_s: float) -> Message | None:
        return self._queue.pop(0) if self._queue else None

    def consume(self, count: int, timeout: float) -> list[Message]:
        assert timeout >= 0
        found, self._queue = self._queue[:count], self._queue[count:]
        return found

    def close(self) -> None:
        self.is_closed = True


class MemoryProducer:
    """In the place of a :class:`~cellfeed.bridge.export.unit_producer.UnitProducer`."""

    def __init__(self, topic: MemoryTopic, stop: threading.Event) -> None:
        self._topic, self._stop = topic, stop
        self._epoch = 0
        self._open: Mapping[int, Sequence[OutRecord]] = {}
        self.is_given_up = False

    def fence(self) -> None:
        self._topic.called("fence")
        self._topic.epoch += 1
        self._epoch = self._topic.epoch

    def _check(self) -> None:
        if self._epoch != self._topic.epoch:
            raise KafkaException(FENCED)

    def begin(self, records: Mapping[int, Sequence[OutRecord]]) -> None:
        self._topic.called("begin")
        self._check()
        self._open = records

    def commit(self, ends: Mapping[int, int]) -> dict[int, int]:
        self._topic.called("commit")
        self._check()
        found: dict[int, int] = {}
        for partition, records in self._open.items():
            log = self._topic.records[partition]
            assert len(log) >= ends.get(partition, 0)
            log += records
            found[partition] = len(log)
            log.append(None)
        self._open = {}
        self._topic.transactions += 1
        self._topic.on_commit()
        return found

    def abort(self) -> None:
        self._open = {}

    def give_up(self) -> None:
        self._topic.calls.append("give_up")
        self.is_given_up = True


def in_place_of_kafka(monkeypatch: Any, topic: MemoryTopic) -> None:
    """Exports write to and read from this topic, and find it fit."""
    from cellfeed.bridge.export import forgetting, preparation, taking_over, unit_run, verify
    from cellfeed.bridge.export.topics import TopicFacts

    def producer(
        _export: object, _unit: int, _topic: str, stop: threading.Event, *_: object
    ) -> MemoryProducer:
        return MemoryProducer(topic, stop)

    def fit(*_: object, **__: object) -> TopicFacts:
        topic.called("ensure_topic")
        return TopicFacts(topic.topic_id, topic.partitions)

    for module in (unit_run, forgetting):
        monkeypatch.setattr(module, "UnitProducer", producer)
    for module in (taking_over, verify):
        monkeypatch.setattr(module, "consumer_of", topic.consumer)
    for module in (taking_over, preparation):
        monkeypatch.setattr(module, "ensure_topic", fit)
        monkeypatch.setattr(module, "admin_of", lambda _: None)
    monkeypatch.setattr(preparation, "ShownEnds", lambda *_: topic)
    monkeypatch.setattr(preparation, "cluster_id_of", lambda _: "cluster")
    monkeypatch.setattr(preparation, "refuse_foreign_topic", lambda *_: None)
