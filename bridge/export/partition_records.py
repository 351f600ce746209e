"""The records of one exported partition, each read once: a look resumes behind the last record."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cellfeed.bridge.export.limits import METADATA_S, TAIL_READ_S
from cellfeed.store.errors import Unavailable

_RECORDS_AT_A_TIME: Final = 2_000
_WAIT_S: Final = 0.5


class PartitionRecords:
    """One partition's. Used by one thread."""

    def __init__(self, topic: str, shard: int) -> None:
        self._topic = topic
        self._shard = shard
        self._offset: int | None = None

    def new(self, consumer: Consumer) -> Iterator[Message]:
        """The records up to the end of the partition as it is now. Raises KafkaException,
        Unavailable when the cluster sends nothing."""
        start, end = consumer.get_watermark_offsets(
            TopicPartition(self._topic, self._shard), timeout=METADATA_S
        )
        if self._offset is None:
            self._offset = start
        if self._offset >= end:
            return
        consumer.assign([TopicPartition(self._topic, self._shard, self._offset)])
        try:
            deadline_s = time.monotonic() + TAIL_READ_S
            while True:
                for message in consumer.consume(_RECORDS_AT_A_TIME, timeout=_WAIT_S):
                    deadline_s = time.monotonic() + TAIL_READ_S
                    error = message.error()
                    if error is None:
                        yield message
                        self._offset = (message.offset() or 0) + 1
                    elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 (the library's name for it)
                        return
                    elif not error.retriable():
                        raise KafkaException(error)
                if time.monotonic() > deadline_s:
                    raise Unavailable(
                        f"partition {self._shard} of {self._topic!r} sent nothing for"
                        f" {TAIL_READ_S:.0f} s"
                    )
        finally:
            consumer.unassign()
