"""A consumer group that loads a topic into a warehouse table: stock ``confluent-kafka``, reading
from a gateway or a Kafka cluster alike.

Kafka's group assigns the partitions; the table decides where reading starts. On assignment each
partition starts at the table's own position, never at the group's committed offset; the group's
offset is committed only after the table's commit, for the tools that show lag. So this process may
die anywhere: between table commit and offset commit the group's offset is behind, and nobody reads
it.

Before each commit the loader asks the cluster for its id: rows of another log than the table's are
given up, and the loader ends (:mod:`cellfeed.consumers.warehouse.source`).

Records are read in ``record_reads.py`` and committed in ``row_commits.py``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    TopicPartition,
)

from cellfeed.consumers.warehouse.assigned_shards import AssignedShards
from cellfeed.consumers.warehouse.kafka_records import (
    start_offset,
)
from cellfeed.consumers.warehouse.loader_progress import (
    DEFAULT_FLUSH,
    FlushPolicy,
    LoaderProgress,
    OnProgress,
)
from cellfeed.consumers.warehouse.recognition import Recognition
from cellfeed.consumers.warehouse.record_reads import RecordReads
from cellfeed.consumers.warehouse.row_commits import RowCommits
from cellfeed.consumers.warehouse.shard_loader import ShardLoader
from cellfeed.consumers.warehouse.table import make_table
from cellfeed.store.failpoints import declare, failpoint

_log = logging.getLogger(__name__)

declare("warehouse.loader.assigned")

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
        self._offset_is_added_id = offset_is_added_id
        make_table(self._directory, topic)
        self._assigned = AssignedShards(self._directory, self.progress)
        config = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            **(consumer_config or {}),
            **_OWN_CONFIG,
        }
        self._consumer = Consumer(config, logger=_log)
        self._cluster = Recognition({**config, "group.id": f"{group}-look"}, topic, self._directory)
        self._commits = RowCommits(
            self._consumer,
            topic,
            self._assigned,
            self.progress,
            flush,
            lambda: self._cluster.recognise(),
        )
        self._reads = RecordReads(
            self._consumer, topic, self._assigned, self._commits, self.progress
        )

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
            while not (stop.is_set() or self._assigned.have_reached(until_offsets)):
                if self._assigned.loaders and not self._cluster.is_recognised:
                    self._cluster.recognise()
                self._reads.take(self._reads.consume())
                self._commits.flush_due()
                if self._assigned.have_reached(until_offsets):
                    # Another loader may be faster with some of it: then the position is not reached
                    # after all, and reading continues.
                    self._commits.flush(list(self._assigned.loaders))
                if on_progress:
                    on_progress(self._report())
            self._commits.flush(list(self._assigned.loaders))
            if on_progress:
                on_progress(self._report())
        finally:
            # Leaves the group, so that others take the partitions over at once. Rows still waiting
            # after an error are simply read again.
            self._assigned.remove_all()
            self._consumer.close()
            self._cluster.close()
        return self.progress

    # --- assignment -------------------------------------------------------------------------------

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._reads.has_rebalanced, self._cluster.is_recognised = True, False
        for partition in partitions:
            shard = partition.partition
            loader = ShardLoader(
                self._directory, shard, offset_is_added_id=self._offset_is_added_id
            )
            partition.offset = start_offset(loader.next_offset)
            self._assigned.assign(shard, loader)
        consumer.assign(partitions)
        failpoint("warehouse.loader.assigned")

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commits.flush([partition.partition for partition in partitions])
        self._on_lost(consumer, partitions)

    def _on_lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._reads.has_rebalanced = True
        for partition in partitions:
            self._assigned.remove(partition.partition)

    def _report(self) -> LoaderProgress:
        self.progress.waiting_rows = sum(
            loader.waiting_rows for loader in self._assigned.loaders.values()
        )
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
