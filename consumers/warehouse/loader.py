"""A consumer group that loads a topic into a warehouse table: stock ``confluent-kafka``, reading
from a gateway or a Kafka cluster alike.

Kafka's group assigns the partitions; the table decides where reading starts. On assignment each
partition starts at the table's own position, never at the group's committed offset; the group's
offset is committed only after the table's commit, for the tools that show lag. So this process may
die anywhere: between table commit and offset commit the group's offset is behind, and nobody reads
it.

Before each commit the loader asks the cluster for its id: rows of another log than the table's are
given up, and the loader ends (:mod:`cellfeed.consumers.warehouse.source`).

A record that cannot be loaded stops its partition, says so, and leaves the others going: nothing is
ever skipped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from cellfeed.consumers.warehouse.kafka_records import (
    CONSUME_WAIT_S,
    content_of,
    partition_of,
    start_offset,
)
from cellfeed.consumers.warehouse.loader_progress import (
    DEFAULT_FLUSH,
    WAITING_BYTES_MAX,
    FlushPolicy,
    LoaderProgress,
    OnProgress,
)
from cellfeed.consumers.warehouse.recognition import Recognition
from cellfeed.consumers.warehouse.shard_loader import ShardLoader
from cellfeed.consumers.warehouse.table import WarehouseTable, make_table
from cellfeed.store.errors import DataDamaged, Unavailable
from cellfeed.store.failpoints import declare, failpoint

_log = logging.getLogger(__name__)

declare(
    "warehouse.loader.before_offsets", "warehouse.loader.after_offsets", "warehouse.loader.assigned"
)

CONSUME_RECORDS: Final = 2_000
"""Records taken from the client at a time."""

_OWN_CONFIG: Final = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # An offset that the log no longer has (or does not have yet) must be heard of; jumping to
    # either end would skip cells.
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}


class WarehouseLoader:
    """One member of the group. :meth:`run` is the whole of its life; it belongs to the thread that
    calls it."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        group: str,
        directory: Path,
        *,
        flush: FlushPolicy = DEFAULT_FLUSH,
        offset_is_added_id: bool = True,
        consumer_config: Mapping[str, Any] | None = None,
    ) -> None:
        """Makes or opens the table in ``directory``. Raises ProtectData when it is another topic's.

        ``offset_is_added_id``: hold every record's offset against its added_id, as is right for a
        gateway's topics; False for a Kafka cluster's topics, where marks of transactions take up
        offsets as well. ``consumer_config``: librdkafka settings beside those that exactly-once
        needs.
        """
        self.progress = LoaderProgress()
        self._topic = topic
        self._directory = Path(directory)
        self._flush_policy = flush
        self._offset_is_added_id = offset_is_added_id
        make_table(self._directory, topic)
        self._shards: dict[int, ShardLoader] = {}
        self._oldest_at: dict[int, float] = {}
        self._to_seek: set[int] = set()
        self._ends_seen: dict[int, int] = {}
        self._rebalanced = False
        config = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            **(consumer_config or {}),
            **_OWN_CONFIG,
        }
        self._consumer = Consumer(config, logger=_log)
        self._cluster = Recognition({**config, "group.id": f"{group}-look"}, topic, self._directory)

    def run(
        self,
        stop: threading.Event,
        on_progress: OnProgress | None = None,
        until_offsets: Mapping[int, int] | None = None,
    ) -> LoaderProgress:
        """Loads until ``stop`` is set, or until every partition of ``until_offsets`` has reached
        its offset or has stopped; then drains.

        Draining commits every row taken so far. Raises errors of the disk (OSError): then nothing
        was lost, and a new loader resumes.
        """
        self._consumer.subscribe(
            [self._topic],
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )
        try:
            while not (stop.is_set() or self._reached(until_offsets)):
                if self._shards and not self._cluster.is_recognised:
                    self._cluster.recognise()
                self._take(self._consume())
                self._flush_due()
                if self._reached(until_offsets):
                    # Another loader may be faster with some of it: then the position is not reached
                    # after all, and reading continues.
                    self._flush(list(self._shards))
                if on_progress:
                    on_progress(self._report())
            self._flush(list(self._shards))
            if on_progress:
                on_progress(self._report())
        finally:
            # Leaves the group, so that others take the partitions over at once. Rows still waiting
            # after an error are simply read again.
            self._oldest_at.clear()
            self._shards.clear()
            self._consumer.close()
            self._cluster.close()
        return self.progress

    # --- records ----------------------------------------------------------------------------------

    def _consume(self) -> list[Message]:
        for shard in sorted(self._to_seek):
            self._seek(shard)
        self._rebalanced = False
        records = self._consumer.consume(CONSUME_RECORDS, CONSUME_WAIT_S)
        if self._rebalanced:
            # The batch may hold records from before and after the change, of one partition even.
            # Continue behind the last record that was really taken.
            self._to_seek |= {partition_of(record) for record in records} & self._shards.keys()
        return records

    def _take(self, records: list[Message]) -> None:
        now = time.monotonic()
        for record in records:
            shard, error = partition_of(record), record.error()
            if error is not None:
                self._note_error(record, error)
                continue
            loader = self._shards.get(shard)
            if loader is None or shard in self._to_seek or shard in self.progress.stopped:
                continue
            try:
                if loader.add(record.offset() or 0, *content_of(record)):
                    self._oldest_at.setdefault(shard, now)
            except DataDamaged as damage:
                self._stop_shard(shard, str(damage))
                continue
            if (
                loader.waiting_rows >= self._flush_policy.rows
                or loader.waiting_bytes >= self._flush_policy.bytes
            ):
                self._flush([shard])

    def _note_error(self, record: Message, error: KafkaError) -> None:
        code, shard = error.code(), partition_of(record)
        if code == KafkaError._PARTITION_EOF:  # noqa: SLF001 (librdkafka's public name for it)
            if shard not in self._to_seek:
                self._ends_seen[shard] = record.offset() or 0
        elif (
            code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)  # noqa: SLF001
            and shard in self._shards
        ):
            self._stop_shard(
                shard,
                f"partition {shard} of {self._topic} has no offset"
                f" {self._shards[shard].next_offset}, where the table continues: the log was"
                f" trimmed before it was loaded, or is another log ({error.str()})",
            )
        elif error.fatal():
            raise Unavailable(f"the Kafka client gave up: {error.str()}")
        else:
            _log.warning("reading %s: %s", self._topic, error.str())

    def _stop_shard(self, shard: int, reason: str) -> None:
        _log.error("partition %d of %s stopped: %s", shard, self._topic, reason)
        self._flush([shard])
        self.progress.stopped[shard] = reason
        self._consumer.pause([TopicPartition(self._topic, shard)])

    def _seek(self, shard: int) -> None:
        loader = self._shards.get(shard)
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
        self._to_seek.discard(shard)

    # --- commits ----------------------------------------------------------------------------------

    def _flush_due(self) -> None:
        now = time.monotonic()
        self._flush(
            [
                shard
                for shard, since in self._oldest_at.items()
                if now - since >= self._flush_policy.age_s
            ]
        )
        while sum(loader.waiting_bytes for loader in self._shards.values()) > WAITING_BYTES_MAX:
            if not self._flush(
                [max(self._shards, key=lambda shard: self._shards[shard].waiting_bytes)]
            ):
                break

    def _flush(self, shards: list[int]) -> bool:
        """Commits the waiting rows of ``shards`` to the table, then the group's offsets; False,
        with nothing done, when the cluster did not report its id."""
        if (
            any(shard in self._shards and self._shards[shard].waiting_rows for shard in shards)
            and not self._cluster.recognise()
        ):
            return False
        offsets = []
        for shard in shards:
            loader = self._shards.get(shard)
            self._oldest_at.pop(shard, None)
            if loader is None or not loader.waiting_rows:
                continue
            commit = loader.flush()
            if commit is None:
                self.progress.lost_races += 1
                self._to_seek.add(shard)
                self._ends_seen.pop(shard, None)
                _log.warning(
                    "another loader commits partition %d of %s too; going on behind it, at %d",
                    shard,
                    self._topic,
                    loader.next_offset,
                )
            else:
                self.progress.rows += commit.rows
                self.progress.files += 1
            self.progress.next_offsets[shard] = loader.committed.next_offset
            offsets.append(TopicPartition(self._topic, shard, loader.committed.next_offset))
        if offsets:
            self._commit_offsets(offsets)
        return True

    def _commit_offsets(self, offsets: list[TopicPartition]) -> None:
        failpoint("warehouse.loader.before_offsets")
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            # The table has the rows; only the lag that tools show is late. The next commit makes it
            # good.
            _log.warning("group offsets of %s not committed: %s", self._topic, error)
        failpoint("warehouse.loader.after_offsets")

    # --- assignment -------------------------------------------------------------------------------

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._rebalanced, self._cluster.is_recognised = True, False
        for partition in partitions:
            shard = partition.partition
            loader = self._shards[shard] = ShardLoader(
                self._directory, shard, offset_is_added_id=self._offset_is_added_id
            )
            partition.offset = start_offset(loader.next_offset)
            self.progress.next_offsets[shard] = loader.next_offset
            self.progress.stopped.pop(shard, None)
            self._to_seek.discard(shard)
            self._ends_seen.pop(shard, None)
        consumer.assign(partitions)
        failpoint("warehouse.loader.assigned")

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._flush([partition.partition for partition in partitions])
        self._on_lost(consumer, partitions)

    def _on_lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._rebalanced = True
        for partition in partitions:
            self._shards.pop(partition.partition, None)
            self._oldest_at.pop(partition.partition, None)
            self._to_seek.discard(partition.partition)

    # --- how far ----------------------------------------------------------------------------------

    def _reached(self, until_offsets: Mapping[int, int] | None) -> bool:
        if until_offsets is None:
            return False
        others = {
            shard: end for shard, end in until_offsets.items() if not self._done_here(shard, end)
        }
        if not others:
            return True
        if any(shard in self._shards for shard in others):
            return False
        if not self._shards:
            return False
        # The remaining shards belong to other members of the group: the table has their positions.
        positions = WarehouseTable(self._directory).next_offsets()
        return all(positions.get(shard, 0) >= end for shard, end in others.items())

    def _done_here(self, shard: int, end: int) -> bool:
        loader = self._shards.get(shard)
        if shard in self.progress.stopped or end == 0:
            return True
        # Behind the last record there may be offsets without one (another column's cells); the end
        # of the partition decides.
        return (
            loader is not None
            and shard not in self._to_seek
            and max(loader.next_offset, self._ends_seen.get(shard, 0)) >= end
        )

    def _report(self) -> LoaderProgress:
        self.progress.waiting_rows = sum(loader.waiting_rows for loader in self._shards.values())
        return self.progress


def run_warehouse_loader(
    bootstrap: str,
    topic: str,
    group: str,
    directory: Path,
    stop_event: threading.Event,
    on_progress: OnProgress | None = None,
    *,
    until_offsets: Mapping[int, int] | None = None,
    flush: FlushPolicy = DEFAULT_FLUSH,
    offset_is_added_id: bool = True,
    consumer_config: Mapping[str, Any] | None = None,
) -> LoaderProgress:
    """Loads ``topic`` into the table in ``directory`` until ``stop_event`` is set (a SIGTERM
    handler sets it) or ``until_offsets`` are reached.

    Returns the counts; a caller that needs all of it checks that ``stopped`` is empty.
    """
    loader = WarehouseLoader(
        bootstrap,
        topic,
        group,
        directory,
        flush=flush,
        offset_is_added_id=offset_is_added_id,
        consumer_config=consumer_config,
    )
    return loader.run(stop_event, on_progress, until_offsets)
