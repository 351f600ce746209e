"""The ends of partitions, as a reader of committed records sees them.

To be read after ``init_transactions`` of the unit's transactional ids. Then the earlier producers
are fenced. Their open transactions are aborted or committed, with the marks written. So the end
that is seen is the end for good. Behind the last record there may be offsets without one: the marks
of transactions, one each, and records of aborted ones.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cellfeed.bridge.events.messages import header_values
from cellfeed.bridge.events.record_headers import added_id_of
from cellfeed.bridge.export.limits import (
    METADATA_S,
    TAIL_READ_S,
    TAIL_RECORDS_FACTOR,
    TAIL_RECORDS_FIRST,
)
from cellfeed.bridge.export.resume import Tail
from cellfeed.store.errors import Unavailable

_BEGINNING, _END = -2, -1
"""In place of a timestamp, as Kafka's ListOffsets has them."""

_MESSAGES_AT_A_TIME = 500
_WAIT_S = 0.5


class LastRecord(NamedTuple):
    """The last committed record of a partition. ``key`` and ``headers`` are the record's own."""

    offset: int
    key: bytes | None
    headers: dict[str, bytes]
    added_id: int | None


class PartitionTail(NamedTuple):
    tail: Tail
    last: LastRecord | None


def read_tails(
    consumer: Consumer, topic: str, partitions: Sequence[int]
) -> dict[int, PartitionTail]:
    """By partition. The consumer reads committed records (``kafka_clients.consumer_of``) and has no
    assignment. Raises KafkaException, Unavailable, DataDamaged."""
    ends = _ends(consumer, topic, partitions)
    found: dict[int, LastRecord] = {}
    left = [partition for partition, (start, end) in ends.items() if end > start]
    back = TAIL_RECORDS_FIRST
    while left:
        starts = {
            partition: max(ends[partition][0], ends[partition][1] - back) for partition in left
        }
        found |= _last_records(consumer, topic, starts)
        left = [
            partition
            for partition in left
            if partition not in found and starts[partition] > ends[partition][0]
        ]
        back *= TAIL_RECORDS_FACTOR
    return {
        partition: _tail(start, end, found.get(partition))
        for partition, (start, end) in ends.items()
    }


def _ends(consumer: Consumer, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
    """The first offset of each partition, and the one behind its last committed record: two
    questions for all of them. One by one a broker took 17 ms for each of 4,096."""
    starts, ends = (_asked(consumer, topic, partitions, at) for at in (_BEGINNING, _END))
    return {each: (starts[each], ends[each]) for each in partitions}


def _asked(consumer: Consumer, topic: str, partitions: Sequence[int], at: int) -> dict[int, int]:
    found = consumer.offsets_for_times(
        [TopicPartition(topic, each, at) for each in partitions], timeout=METADATA_S
    )
    for each in found:
        if each.error is not None:
            raise KafkaException(each.error)
    return {each.partition: each.offset for each in found}


def _last_records(consumer: Consumer, topic: str, starts: dict[int, int]) -> dict[int, LastRecord]:
    """The last record from each of these offsets on."""
    found: dict[int, LastRecord] = {}
    unread = set(starts)
    consumer.assign(
        [TopicPartition(topic, partition, offset) for partition, offset in starts.items()]
    )
    try:
        deadline_s = time.monotonic() + TAIL_READ_S
        while unread:
            # To ask for many at once is to wait until there are so many, or for the whole time: one
            # is waited for, and those there with it are taken along.
            first = consumer.poll(_WAIT_S)
            for message in (
                () if first is None else (first, *consumer.consume(_MESSAGES_AT_A_TIME, timeout=0))
            ):
                deadline_s = time.monotonic() + TAIL_READ_S
                error = message.error()
                if error is None:
                    found[_partition(message)] = _record(message)
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 (the library's name for it)
                    unread.discard(_partition(message))
                elif not error.retriable():
                    raise KafkaException(error)
            if time.monotonic() > deadline_s:
                raise Unavailable(
                    f"the end of partition {min(unread)} of {topic!r} could not be read within"
                    f" {TAIL_READ_S:.0f} s"
                )
    finally:
        consumer.unassign()
    return found


def _record(message: Message) -> LastRecord:
    headers = header_values(message)
    key = message.key()
    return LastRecord(
        message.offset() or 0,
        key if isinstance(key, bytes) or key is None else key.encode(),
        headers,
        added_id_of(headers.items()),
    )


def _partition(message: Message) -> int:
    partition = message.partition()
    assert partition is not None  # noqa: S101 (every message and every end of a partition that a consumer gives out has one)
    return partition


def _tail(start: int, end: int, last: LastRecord | None) -> PartitionTail:
    if last is None:
        return PartitionTail(Tail(None, start, end), None)
    return PartitionTail(Tail(last.added_id, start, end, foreign=last.added_id is None), last)
