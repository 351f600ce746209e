"""A consumer group that loads a topic into a lake table, from a gateway or a Kafka cluster alike.

Kafka's group assigns the partitions; the table decides where reading starts. All shards that a
loader reads share one commit. The group's offsets follow the table, for lag tools only.

- A catalog that is away stops commits alone: rows wait, and reading pauses once they fill the
  memory for them.
- A loader that was overtaken gives its rows up and reads from the table's positions.
- A record that cannot be loaded stops its partition, with the reason; the others continue.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from cellfeed.consumers.lake.commits import Commits, Committed
from cellfeed.consumers.lake.open_table import Place
from cellfeed.consumers.lake.progress import (
    DEFAULT_POLICY,
    CommitPolicy,
    LakeProgress,
    OnProgress,
)
from cellfeed.consumers.lake.reading import Reading
from cellfeed.consumers.lake.source import LogSource
from cellfeed.consumers.lake.typed.following import ColumnVersions, TypedTables
from cellfeed.consumers.lake.waiters import AWAITED_AGE_S, Nobody, Waiters
from cellfeed.consumers.lake.waiting_rows import WaitingRows
from cellfeed.store.failpoints import declare, failpoint

REPORT_S: Final = 0.5
"""Between two reports of the progress, seconds."""

declare("lake.loader.before_offsets", "lake.loader.after_offsets")


class LakeLoader:
    """One member of the group. :meth:`run` is the whole of its life; it belongs to the thread that
    calls it."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        group: str,
        place: Place,
        *,
        policy: CommitPolicy = DEFAULT_POLICY,
        offset_is_added_id: bool = True,
        client: Mapping[str, Any] | None = None,
        waiters: Waiters | None = None,
        schemas: Callable[[], ColumnVersions] | None = None,
    ) -> None:
        """``offset_is_added_id``: hold every record's offset against its added_id, as is right for
        a gateway's topics; False for a Kafka cluster's, where marks of transactions take up offsets
        as well. ``client``: librdkafka settings beside those that exactly-once needs. ``waiters``:
        woken by each commit; while there are any, rows wait ``AWAITED_AGE_S`` at most.
        ``schemas``: asks for the columns that have typed tables; none have without it."""
        self.progress = LakeProgress()
        self._policy = policy
        self._waiters = waiters or Nobody()
        self._reported_at = 0.0
        config = {"bootstrap.servers": bootstrap, **(client or {})}
        self._waiting = WaitingRows(offset_is_added_id=offset_is_added_id)
        typed = TypedTables(place, schemas, self.progress) if schemas is not None else None
        self._commits = Commits(place, LogSource(config, topic), self.progress, typed)
        self._reading = Reading(
            {**config, "group.id": group},
            topic,
            self._waiting,
            self.progress,
            positions=self._commits.positions,
            commit=self._commit_all,
            abandon=self._commits.abandon,
        )

    def run(
        self,
        stop: threading.Event,
        on_progress: OnProgress | None = None,
        until_offsets: Mapping[int, int] | None = None,
    ) -> LakeProgress:
        """Loads until ``stop`` is set, or until every partition of ``until_offsets`` has reached
        its offset or has stopped; then commits every row taken so far.

        Raises ProtectData for a table of another log, OSError of the disk: then nothing was lost,
        and a new loader resumes.
        """
        try:
            while not stop.is_set():
                self._reading.read(full=self._is_full())
                if self._is_due():
                    self._commit()
                self._commits.catch_up(self._waiting.shards)
                self._report(on_progress)
                if until_offsets is not None and self._reached(until_offsets):
                    break
            self._commit_all()
            while until_offsets is not None and self._commits.catch_up(self._waiting.shards):
                if self.progress.table_troubles or stop.is_set():
                    break  # the next loader's tables catch up
            self._report(on_progress, at_once=True)
        finally:
            self._reading.close()
        return self.progress

    def _is_full(self) -> bool:
        return self._waiting.memory_bytes >= self._policy.bytes

    def _is_due(self) -> bool:
        return (
            self._commits.is_pending
            or self._waiting.count >= self._policy.rows
            or self._is_full()
            or self._waiting.age_s >= self._policy.age_s
            or (self._waiting.age_s >= AWAITED_AGE_S and self._waiters.is_awaited())
        )

    def _commit(self) -> bool:
        """One commit; returns whether it landed."""
        done = self._commits.commit(self._waiting)
        if done is Committed.OVERTAKEN:
            self._reading.start_over()
        elif done is Committed.LANDED:
            self._waiters.wake()
            failpoint("lake.loader.before_offsets")
            self._reading.save_offsets()
            failpoint("lake.loader.after_offsets")
        return done is Committed.LANDED

    def _commit_all(self) -> None:
        """The addition of before and all waiting rows. Rows that cannot be committed now are read
        again by the next loader."""
        while self._commit() and self._waiting.count:
            pass

    def _reached(self, until: Mapping[int, int]) -> bool:
        ends = {shard: end for shard, end in until.items() if end}
        if not all(self._reading.is_read_to(shard, end) for shard, end in ends.items()):
            if not self._waiting.count:
                self._commits.positions()  # other members of the group commit their shards
            return False
        if self._waiting.count or self._commits.is_pending:
            self._commit_all()
        return not (self._waiting.count or self._commits.is_pending) and all(
            self._reading.is_read_to(shard, end) for shard, end in ends.items()
        )

    def _report(self, on_progress: OnProgress | None, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if on_progress is None or (now - self._reported_at < REPORT_S and not at_once):
            return
        self._reported_at = now
        self._reading.note_ends()
        self.progress.waiting_rows = self._waiting.count
        on_progress(self.progress)


def run_lake_loader(
    bootstrap: str,
    topic: str,
    group: str,
    place: Place,
    stop: threading.Event,
    on_progress: OnProgress | None = None,
    *,
    until_offsets: Mapping[int, int] | None = None,
    policy: CommitPolicy = DEFAULT_POLICY,
    offset_is_added_id: bool = True,
    client: Mapping[str, Any] | None = None,
    waiters: Waiters | None = None,
    schemas: Callable[[], ColumnVersions] | None = None,
) -> LakeProgress:
    """Loads ``topic`` into the table at ``place`` until ``stop`` is set (a SIGTERM handler sets it)
    or ``until_offsets`` are reached. Returns the counts; a caller that needs all of it checks that
    ``stopped`` is empty."""
    loader = LakeLoader(
        bootstrap,
        topic,
        group,
        place,
        policy=policy,
        offset_is_added_id=offset_is_added_id,
        client=client,
        waiters=waiters,
        schemas=schemas,
    )
    return loader.run(stop, on_progress, until_offsets)
