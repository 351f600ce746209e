"""Commits of waiting rows: to the table first, then the group's offsets, for the tools that show
lag. A process that dies in between leaves an offset that is behind, and nobody reads it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from cellfeed.consumers.warehouse.assigned_shards import AssignedShards
from cellfeed.consumers.warehouse.loader_progress import (
    WAITING_BYTES_MAX,
    FlushPolicy,
    LoaderProgress,
)
from cellfeed.store.failpoints import declare, failpoint

_log: Final = logging.getLogger("cellfeed.consumers.warehouse.loader")

declare("warehouse.loader.before_offsets", "warehouse.loader.after_offsets")


class RowCommits:
    """Belongs to the loader's thread. ``recognise`` asks the cluster whether it is the table's; it
    returns False when the cluster did not report its id."""

    def __init__(
        self,
        consumer: Consumer,
        topic: str,
        assigned: AssignedShards,
        progress: LoaderProgress,
        policy: FlushPolicy,
        recognise: Callable[[], bool],
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._assigned = assigned
        self._progress = progress
        self._policy = policy
        self._recognise = recognise

    def is_full(self, shard: int) -> bool:
        """Whether so many rows of the shard wait that they make a file."""
        loader = self._assigned.loaders[shard]
        return (
            loader.waiting_rows >= self._policy.rows or loader.waiting_bytes >= self._policy.bytes
        )

    def flush_due(self) -> None:
        """Commits shards whose oldest row has waited long enough, and the largest ones while all
        waiting rows take too much memory."""
        loaders, now = self._assigned.loaders, time.monotonic()
        self.flush(
            [
                shard
                for shard, since in self._assigned.oldest_at.items()
                if now - since >= self._policy.age_s
            ]
        )
        while sum(loader.waiting_bytes for loader in loaders.values()) > WAITING_BYTES_MAX:
            if not self.flush([max(loaders, key=lambda shard: loaders[shard].waiting_bytes)]):
                break

    def flush(self, shards: Collection[int]) -> bool:
        """Commits the waiting rows of ``shards`` to the table, then the group's offsets; False,
        with nothing done, when the cluster did not report its id."""
        loaders, progress = self._assigned.loaders, self._progress
        if (
            any(shard in loaders and loaders[shard].waiting_rows for shard in shards)
            and not self._recognise()
        ):
            return False
        offsets = []
        for shard in shards:
            loader = loaders.get(shard)
            self._assigned.oldest_at.pop(shard, None)
            if loader is None or not loader.waiting_rows:
                continue
            commit = loader.flush()
            if commit is None:
                progress.lost_races += 1
                self._assigned.to_seek.add(shard)
                self._assigned.ends_seen.pop(shard, None)
                _log.warning(
                    "another loader commits partition %d of %s too; continuing behind it, at %d",
                    shard,
                    self._topic,
                    loader.next_offset,
                )
            else:
                progress.rows += commit.rows
                progress.files += 1
            progress.next_offsets[shard] = loader.committed.next_offset
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
