"""A Kafka consumer that gives the records of a test, for the steps of a loader: which call comes
before which, and the effect of a client's error. Real clients are in ``integration/consumers``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, TopicPartition

TOPIC = "trips"


class Record:
    """A record, or an error of a partition."""

    def __init__(
        self,
        partition: int | None,
        offset: int,
        value: bytes | None = None,
        error: KafkaError | None = None,
        key: bytes | None = None,
    ) -> None:
        self._parts = (partition, offset, value, error, key)

    def partition(self) -> int | None:
        return self._parts[0]

    def offset(self) -> int:
        return self._parts[1]

    def value(self) -> bytes | None:
        return self._parts[2]

    def error(self) -> KafkaError | None:
        return self._parts[3]

    def key(self) -> bytes | None:
        return self._parts[4]

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, 5


def records(shard: int, found: Sequence[tuple[int, bytes]]) -> list[Record]:
    return [Record(shard, offset, value) for offset, value in found]


def end_of(shard: int, offset: int) -> Record:
    """The client's message at the end of a partition."""
    return Record(shard, offset, error=KafkaError(KafkaError._PARTITION_EOF))


Step = Sequence[Record] | Callable[[], Sequence[Record] | None]


class ScriptedConsumer:
    """``steps``: the batch that each :meth:`consume` gives; a function is called first. ``calls``:
    the calls that it got, in order."""

    def __init__(self, steps: list[Step] | None = None, ends: Mapping[int, int] | None = None):
        self.steps = steps or []
        self.ends = ends or {}
        self.calls: list[tuple[Any, ...]] = []
        self.config: dict[str, Any] = {}
        self.on: dict[str, Callable[..., None]] = {}
        self.cluster_id: str | None = "cluster"
        self.topic_error: KafkaError | None = None
        self.fails: dict[str, Exception] = {}
        """By method the error of its next call."""

    def made(self, config: Mapping[str, Any], **_: Any) -> ScriptedConsumer:
        """In place of the client's class."""
        self.config = dict(config)
        return self

    def _call(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, *arguments))
        if (error := self.fails.pop(name, None)) is not None:
            raise error

    def subscribe(self, topics: list[str], **callbacks: Callable[..., None]) -> None:
        self._call("subscribe", *topics)
        self.on = callbacks

    def rebalance(self, name: str, *shards: int) -> None:
        """As the client calls a loader back: ``on_assign``, ``on_revoke`` or ``on_lost``."""
        self.on[name](self, [TopicPartition(TOPIC, shard) for shard in shards])

    def consume(self, _count: int, _wait_s: float) -> Sequence[Record]:
        step = self.steps.pop(0) if self.steps else []
        return step if not callable(step) else step() or []

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._call("assign", {each.partition: each.offset for each in partitions})

    def unassign(self) -> None:
        self._call("unassign")

    def seek(self, partition: TopicPartition) -> None:
        self._call("seek", partition.partition, partition.offset)

    def pause(self, partitions: list[TopicPartition]) -> None:
        self._call("pause", *(each.partition for each in partitions))

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        self._call("commit", {each.partition: each.offset for each in offsets}, asynchronous)

    def close(self) -> None:
        self._call("close")

    def list_topics(self, topic: str, _timeout_s: float) -> SimpleNamespace:
        self._call("list_topics", topic)
        found = SimpleNamespace(error=self.topic_error, partitions=dict.fromkeys(self.ends))
        return SimpleNamespace(cluster_id=self.cluster_id, topics={topic: found})

    def get_watermark_offsets(self, partition: TopicPartition, _wait_s: float) -> tuple[int, int]:
        return 3, self.ends[partition.partition]
