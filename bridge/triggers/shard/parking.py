"""Parking a shard's cells: those whose tries are used up, and those of a row key that has a parked
cell.

A parked cell and the offset past it are one commit (``position.py``). Which row keys have parked
cells follows from the queue (``parked/cells.py``), read when the shard is begun and whenever there
were any: only this run adds to it. Too many parked cells stop the trigger.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from cellfeed.bridge.triggers.parked.cell import ParkedCell
from cellfeed.bridge.triggers.shard.attempts import Failed
from cellfeed.bridge.triggers.shard.context import ShardContext
from cellfeed.bridge.triggers.shard.parked_retry import ParkedRetry
from cellfeed.bridge.triggers.shard.position import Position
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.failpoints import declare, failpoint

declare("trigger.before_park", "trigger.after_park")

_PARKED_PER_FAILED_MAX: Final = 100
"""A trigger that keeps order stops when so many times ``parked_max`` cells are parked: a
row key that never ends must not fill the state table."""

_COUNT_PARKED_EVERY: Final = 50
"""Cells parked behind others between two counts. Each count reads all parked cells of the
group."""


class Parking:
    """Of one shard's run. Used by one thread at a time."""

    def __init__(self, context: ShardContext, position: Position, retry: ParkedRetry) -> None:
        self._trigger = context.trigger
        self._claim = context.claim
        self._parked = context.of_trigger.parked
        self._recorded = context.recorded
        self._progress = context.progress
        self._position = position
        self._retry = retry
        self._rows_parked: set[bytes] | None = None
        self._parked_since_counted = 0
        self.stopped_trigger = False
        """Whether too many cells are parked: the trigger stops."""

    def look_at_rows(self) -> None:
        """Reads which row keys have parked cells, where order by row key is kept."""
        if self._trigger.order_by_row_key and self._rows_parked != set():
            self._rows_parked = {UUID(cell.row_key).bytes for cell in self._retry.parked()}

    def first_behind(self, cells: Sequence[StoredCell]) -> int | None:
        """The index of the first cell whose row key has a parked cell; None when there is none."""
        rows = self._rows_parked
        if not rows:
            return None
        return next((index for index, cell in enumerate(cells) if cell.row_key in rows), None)

    def park(self, cell: StoredCell, failed: Failed) -> None:
        """Parks a cell whose tries are used up. Raises StaleWriter, Unavailable."""
        self._park(cell, failed, is_behind=False)
        if self._rows_parked is not None:
            self._rows_parked.add(cell.row_key)
        count = self._parked.count_failed(self._trigger.group)
        if count >= self._trigger.parked_max:
            self._stop_trigger(
                f"{count} cells are parked, the limit is {self._trigger.parked_max}; the last one"
                f" is {self._claim.partition}/{cell.added_id}"
            )

    def park_behind(self, cell: StoredCell) -> None:
        """Parks a cell unrun, behind the parked cell of its row key. Raises StaleWriter,
        Unavailable."""
        self._position.make_sure()
        self._park(
            cell, Failed("waits: an earlier cell of its row key is parked", 0), is_behind=True
        )
        self._parked_since_counted += 1
        if self._parked_since_counted >= _COUNT_PARKED_EVERY:
            self._parked_since_counted = 0
            limit = _PARKED_PER_FAILED_MAX * self._trigger.parked_max
            if (count := self._parked.count(self._trigger.group)) >= limit:
                self._stop_trigger(
                    f"{count} cells are parked or wait behind parked ones, the limit is {limit}"
                )

    def _park(self, cell: StoredCell, failed: Failed, *, is_behind: bool) -> None:
        now_us = time.time_ns() // 1000
        parked = ParkedCell(
            group=self._trigger.group,
            topic=self._claim.topic,
            partition=self._claim.partition,
            added_id=cell.added_id,
            row_key=str(UUID(bytes=cell.row_key)),
            column_name=cell.column_name,
            ref_key=cell.ref_key,
            error=failed.error,
            attempts=failed.attempts,
            parked_at_us=now_us,
            last_tried_at_us=now_us,
            ended=failed.ended,
            in_order=self._trigger.order_by_row_key,
            is_behind=is_behind,
        )
        failpoint("trigger.before_park")
        self._position.save_with(
            cell.added_id + 1,
            {**self._parked.entry(parked), **self._recorded.parked(cell.added_id)},
        )
        self._recorded.struck_off(cell.added_id)
        failpoint("trigger.after_park")
        self._retry.drop_erased([parked])
        self._progress.parked += 1

    def _stop_trigger(self, reason: str) -> None:
        self.stopped_trigger = True
        self._parked.stop(self._trigger.group, reason)
