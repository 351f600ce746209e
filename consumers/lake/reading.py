"""The consumer of a loader: where each partition is read, and records that become waiting rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from cellfeed.bridge.events.messages import header_values
from cellfeed.consumers.lake.positions import START, Positions
from cellfeed.consumers.lake.progress import LakeProgress
from cellfeed.consumers.lake.waiting_rows import WaitingRows
from cellfeed.store.errors import DataDamaged, Unavailable

_log = logging.getLogger("cellfeed.consumers.lake")

CONSUME_RECORDS: Final = 2_000
"""Records taken from the client at a time."""

CONSUME_WAIT_S: Final = 0.2
"""How long one call waits for records: also how soon a stop is seen."""

OWN_CONFIG: Final = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # An offset that the log no longer has (or does not have yet) must be heard of; jumping to
    # either end would skip cells.
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
}
QUEUE_KIB: Final = 32 << 10
"""Memory of records that the client has fetched ahead."""


class Reading:
    """``positions``: the table's, None while nobody can say; ``commit``: of all rows that wait,
    before partitions are given back; ``abandon``: of rows that were given up. Used by the loader's
    thread."""

    def __init__(
        self,
        config: Mapping[str, Any],
        topic: str,
        waiting: WaitingRows,
        progress: LakeProgress,
        *,
        positions: Callable[[], Positions | None],
        commit: Callable[[], None],
        abandon: Callable[[], None],
    ) -> None:
        self._consumer = Consumer(
            {"queued.max.messages.kbytes": QUEUE_KIB, **config, **OWN_CONFIG}, logger=_log
        )
        self._topic = topic
        self._waiting = waiting
        self._progress = progress
        self._positions = positions
        self._commit = commit
        self._abandon = abandon
        self._unplaced: set[int] = set()
        self._to_seek: set[int] = set()
        self._is_paused = False
        self._rebalanced = False
        self.ends_seen: dict[int, int] = {}
        self._consumer.subscribe(
            [topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def close(self) -> None:
        """Leaves the group, so that others take the partitions over at once."""
        self._consumer.close()

    def is_read_to(self, shard: int, end: int) -> bool:
        """Whether the rows before an offset are in the table, or wait. Behind the last record there
        may be offsets without one (marks of transactions)."""
        if shard in self._progress.stopped or self._progress.next_offsets.get(shard, 0) >= end:
            return True
        if not self._waiting.reads(shard) or shard in self._to_seek:
            return False
        return max(self._waiting.next_offset(shard), self.ends_seen.get(shard, 0)) >= end

    def read(self, *, full: bool) -> None:
        """Takes the next records. ``full``: the memory for rows is used up: takes none, and stays
        in the group."""
        self._place()
        self._pause(full)
        self._rebalanced = False
        records = self._consumer.consume(CONSUME_RECORDS, CONSUME_WAIT_S)
        if self._rebalanced:
            # The batch may have records from before and after the change, of one partition even:
            # each partition is read again behind the last record taken.
            self._to_seek |= {_partition(record) for record in records}
            return
        waiting, stopped = self._waiting, self._progress.stopped
        for record in records:
            shard = _partition(record)
            if (error := record.error()) is not None:
                self._note_error(record, error)
                continue
            if not waiting.reads(shard) or shard in self._to_seek or shard in stopped:
                continue
            value = record.value()
            try:
                if value is not None:
                    waiting.add(shard, record.offset() or 0, value, None, {}, 0)
                else:
                    waiting.add(
                        shard,
                        record.offset() or 0,
                        None,
                        record.key(),
                        header_values(record),
                        record.timestamp()[1],
                    )
            except DataDamaged as damage:
                self._stop(shard, str(damage))

    def start_over(self) -> None:
        """Gives the waiting rows up, and reads every partition from the table's position."""
        self._abandon()
        self._unplaced |= set(self._waiting.forget())

    def save_offsets(self) -> None:
        """Shows the table's positions to lag tools, as the group's offsets."""
        offsets = [
            TopicPartition(self._topic, shard, offset)
            for shard, offset in self._progress.next_offsets.items()
            if self._waiting.reads(shard)
        ]
        try:
            if offsets:
                self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            # The table has the rows; only the shown lag is late. The next commit makes it good.
            _log.warning("group offsets of %s not committed: %s", self._topic, error)

    def note_ends(self) -> None:
        """Notes the ends of the partitions, as far as the client has heard of them."""
        for shard in self._progress.next_offsets:
            if not self._waiting.reads(shard):
                continue
            partition = TopicPartition(self._topic, shard)
            found = self._consumer.get_watermark_offsets(partition, cached=True)
            if found is not None and found[1] >= 0:
                self._progress.ends[shard] = found[1]

    # --- where each partition is read -------------------------------------------------------------

    def _place(self) -> None:
        if self._unplaced and (positions := self._positions()) is not None:
            for shard in self._unplaced:
                self._waiting.place(shard, positions.get(shard, START))
                self.ends_seen.pop(shard, None)
            self._to_seek |= self._unplaced
            self._unplaced = set()
        for shard in sorted(self._to_seek):
            self._seek(shard)

    def _seek(self, shard: int) -> None:
        if self._waiting.reads(shard):
            # Without rows the log is read from its present start: cells trimmed before are gone.
            offset = self._waiting.next_offset(shard) or OFFSET_BEGINNING
            try:
                self._consumer.seek(TopicPartition(self._topic, shard, offset))
            except KafkaException as error:
                # The partition is not fetched yet; its records are left alone until then.
                _log.info("seek in partition %d of %s again later: %s", shard, self._topic, error)
                return
        self._to_seek.discard(shard)

    def _pause(self, full: bool) -> None:
        if full == self._is_paused:
            return
        partitions = self._consumer.assignment()
        if full:
            self._consumer.pause(partitions)
        else:
            self._consumer.resume(
                [each for each in partitions if each.partition not in self._progress.stopped]
            )
        self._is_paused = full

    def _stop(self, shard: int, reason: str) -> None:
        _log.error("partition %d of %s stopped: %s", shard, self._topic, reason)
        self._progress.stopped[shard] = reason
        self._consumer.pause([TopicPartition(self._topic, shard)])

    def _note_error(self, record: Message, error: KafkaError) -> None:
        code, shard = error.code(), _partition(record)
        if code == KafkaError._PARTITION_EOF:  # noqa: SLF001 (librdkafka's public name for it)
            if self._waiting.reads(shard) and shard not in self._to_seek:
                self.ends_seen[shard] = record.offset() or 0
        elif code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):  # noqa: SLF001
            if self._waiting.reads(shard) and shard not in self._to_seek:
                self._stop(
                    shard,
                    f"partition {shard} of {self._topic} has no offset"
                    f" {self._waiting.next_offset(shard)}, where the table continues: the log was"
                    f" trimmed before it was loaded ({error.str()})",
                )
        elif error.fatal():
            raise Unavailable(f"the Kafka client gave up: {error.str()}")
        else:
            _log.warning("reading %s: %s", self._topic, error.str())

    # --- assignment -------------------------------------------------------------------------------

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._rebalanced, self._is_paused = True, False
        positions = self._positions()
        for each in partitions:
            shard = each.partition
            each.offset = OFFSET_BEGINNING
            self._progress.stopped.pop(shard, None)
            self.ends_seen.pop(shard, None)
            if positions is None:
                self._unplaced.add(shard)
            else:
                self._waiting.place(shard, positions.get(shard, START))
                each.offset = self._waiting.next_offset(shard) or OFFSET_BEGINNING
        consumer.assign(partitions)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit()
        self._on_lost(consumer, partitions)

    def _on_lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._rebalanced = True
        lost = {each.partition for each in partitions}
        self.start_over()
        self._unplaced -= lost
        self._to_seek -= lost
        for shard in lost:
            self._progress.ends.pop(shard, None)


def _partition(record: Message) -> int:
    partition = record.partition()
    return -1 if partition is None else partition
