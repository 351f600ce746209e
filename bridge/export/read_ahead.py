"""Reads a unit's batches, the next one while the present one is committed.

While the cluster is away nothing is read from the log but the batch under way and the one after it,
so memory stays bounded; the log is the store's and waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from cellfeed.bridge.export.batches import Batch, BatchReader
from cellfeed.bridge.export.limits import READ_AHEAD_CELLS_MIN
from cellfeed.bridge.export.unit_looks import UnitLooks
from cellfeed.store.engines.contract.values import Head


class ReadAhead:
    """Belongs to the unit's thread; ``threads`` read. ``heads`` are kept up to date by the
    exporter. ``cells_max``: of one batch."""

    def __init__(
        self,
        reader: BatchReader,
        heads: Mapping[int, Head],
        looks: UnitLooks,
        threads: ThreadPoolExecutor,
        cells_max: int,
    ) -> None:
        self._reader = reader
        self._heads = heads
        self._looks = looks
        self._threads = threads
        self._cells_max = cells_max
        self._following: Future[Batch | None] | None = None
        self._changes = 0
        self._all_read_at = -1

    def next(self, locations: Mapping[int, int]) -> Batch | None:
        """The batch behind ``locations``: the one read ahead, or one read now. None: nothing is
        there; then :meth:`wait`."""
        batch = self._following.result() if self._following is not None else None
        self._following = None
        self._changes = self._looks.changes
        if batch is None and self._changes != self._all_read_at:
            batch = self._reader.read(locations, self._heads, self._cells_max)
            if batch is None and not self._behind(locations):
                self._all_read_at = self._changes
        return batch

    def wait(self) -> None:
        """Waits for heads that changed since :meth:`next` looked."""
        self._looks.wait_for_change(self._changes)

    def begin(self, locations: Mapping[int, int]) -> bool:
        """Has the batch behind ``locations`` read, or looked for, while the caller commits the one
        before. Whether the logs are far behind: then it is read at once."""
        if is_behind := self._behind(locations) >= READ_AHEAD_CELLS_MIN:
            self._following = self._threads.submit(
                self._reader.read, locations, self._heads, self._cells_max
            )
        elif self._looks.pace.looks_meanwhile:
            self._following = self._threads.submit(self.look_and_read, locations)
        return is_behind

    def look_and_read(self, locations: Mapping[int, int]) -> Batch | None:
        """Waits for the next look, then reads."""
        self._looks.wait_for_look()
        return self._reader.read(locations, self._heads, self._cells_max)

    def close(self) -> None:
        """Gives up the batch that was read ahead; an error of its is taken note of."""
        if (following := self._following) is not None:
            following.cancel()
            following.exception() if following.done() and not following.cancelled() else None

    def _behind(self, locations: Mapping[int, int]) -> int:
        return sum(
            max(0, self._heads[shard].watermark - location) for shard, location in locations.items()
        )
