"""Reads a loader's records. A record that cannot be loaded stops its partition, says so, and leaves
the others going: nothing is ever skipped."""

from __future__ import annotations

import logging
import time
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cellfeed.consumers.warehouse.assigned_shards import AssignedShards
from cellfeed.consumers.warehouse.kafka_records import (
    CONSUME_WAIT_S,
    content_of,
    partition_of,
    start_offset,
)
from cellfeed.consumers.warehouse.loader_progress import LoaderProgress
from cellfeed.consumers.warehouse.row_commits import RowCommits
from cellfeed.store.errors import DataDamaged, Unavailable

_log: Final = logging.getLogger("cellfeed.consumers.warehouse.loader")

CONSUME_RECORDS: Final = 2_000
"""Records taken from the client at a time."""


class RecordReads:
    """Belongs to the loader's thread."""

    def __init__(
        self,
        consumer: Consumer,
        topic: str,
        assigned: AssignedShards,
        commits: RowCommits,
        progress: LoaderProgress,
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._assigned = assigned
        self._loaders = assigned.loaders
        self._commits = commits
        self._progress = progress
        self.has_rebalanced = False
        """Set by the loader when its partitions change, which happens inside :meth:`consume`."""

    def consume(self) -> list[Message]:
        """The next records; waits for some a fraction of a second."""
        for shard in sorted(self._assigned.to_seek):
            self._seek(shard)
        self.has_rebalanced = False
        records = self._consumer.consume(CONSUME_RECORDS, CONSUME_WAIT_S)
        if self.has_rebalanced:
            # The batch may hold records from before and after the change, of one partition even.
            # Continue behind the last record that was really taken.
            self._assigned.to_seek |= {
                partition_of(record) for record in records
            } & self._loaders.keys()
        return records

    def take(self, records: list[Message]) -> None:
        """Adds the records to their shards' waiting rows, and commits shards that are full."""
        now = time.monotonic()
        for record in records:
            shard, error = partition_of(record), record.error()
            if error is not None:
                self._note_error(record, error)
                continue
            loader = self._loaders.get(shard)
            if loader is None or shard in self._assigned.to_seek or shard in self._progress.stopped:
                continue
            try:
                if loader.add(record.offset() or 0, *content_of(record)):
                    self._assigned.oldest_at.setdefault(shard, now)
            except DataDamaged as damage:
                self._stop_shard(shard, str(damage))
                continue
            if self._commits.is_full(shard):
                self._commits.flush([shard])

    def _note_error(self, record: Message, error: KafkaError) -> None:
        code, shard = error.code(), partition_of(record)
        if code == KafkaError._PARTITION_EOF:  # noqa: SLF001 (librdkafka's public name for it)
            if shard not in self._assigned.to_seek:
                self._assigned.ends_seen[shard] = record.offset() or 0
        elif (
            code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)  # noqa: SLF001
            and shard in self._loaders
        ):
            self._stop_shard(
                shard,
                f"partition {shard} of {self._topic} has no offset"
                f" {self._loaders[shard].next_offset}, where the table continues: the log was"
                f" trimmed before it was loaded, or is another log ({error.str()})",
            )
        elif error.fatal():
            raise Unavailable(f"the Kafka client gave up: {error.str()}")
        else:
            _log.warning("reading %s: %s", self._topic, error.str())

    def _stop_shard(self, shard: int, reason: str) -> None:
        _log.error("partition %d of %s stopped: %s", shard, self._topic, reason)
        self._commits.flush([shard])
        self._progress.stopped[shard] = reason
        self._consumer.pause([TopicPartition(self._topic, shard)])

    def _seek(self, shard: int) -> None:
        loader = self._loaders.get(shard)
        try:
            if loader is not None:
                self._consumer.seek(
                    TopicPartition(self._topic, shard, start_offset(loader.next_offset))
                )
        except KafkaException as error:
            # The partition is not being fetched yet; its records are left alone until the seek has
            # worked.
            _log.info("seek in partition %d of %s again later: %s", shard, self._topic, error)
            return
        self._assigned.to_seek.discard(shard)
