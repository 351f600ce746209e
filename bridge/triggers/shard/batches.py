"""The next cells of a shard's log, cut for single calls of the function: a cell, or a batch.

A batch is full with ``batch`` cells or when its bodies reach ``SCAN_BYTES_MAX`` (encoded) or
``SCAN_DECODED_BYTES_MAX``. One that is not full waits for ``batch_wait_s`` from when it was first
seen; the offset stays before it meanwhile, so the shard's next owner collects it again. A cell with
tries on record (``recorded_attempts.py``) and the cells of a careful stretch come alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from cellfeed.bridge.triggers.program import Trigger
from cellfeed.store.cells.body_codec import decoded_bytes_bound
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.limits import ADDED_ID_MAX, SCAN_BYTES_MAX, SCAN_DECODED_BYTES_MAX

CHUNK_CELLS: Final = 200
"""Cells read, and at most run, between two looks at whether the shard is still ours."""

BACKLOG_CELLS: Final = 500
"""Cells from which on a shard is catching up: more than come in between two looks, and enough to be
worth a transaction of their own."""

LIVE_CELLS_MAX: Final = CHUNK_CELLS
"""Cells up to which a shard keeps up with its log: they are few enough to be run with those of
other shards."""

Batch = tuple[list[StoredCell], int]
"""The cells of one call (none, when no cell read is for this trigger) and the location behind
them."""


@dataclass(frozen=True)
class _Waiting:
    """A batch that is not full: its first cell, when it is due even so, how far the log was read,
    and how many cells it lacks."""

    first: int
    due_at_s: float
    read_to: int
    lacks: int


class Batches:
    """Of one shard's run. Used by one thread at a time. ``scan(location, limit)`` reads the shard's
    log; ``is_batch_of_one(added_id)`` says which cells come alone."""

    def __init__(
        self,
        trigger: Trigger,
        scan: Callable[[int, int], list[StoredCell]],
        is_batch_of_one: Callable[[int], bool],
    ) -> None:
        self._trigger = trigger
        self._scan = scan
        self._is_batch_of_one = is_batch_of_one
        self.log_end = ADDED_ID_MAX
        """Where the log ended when somebody looked: later cells are found at the next look, so
        nothing is read there. Set by any thread."""
        self._waiting: _Waiting | None = None

    def may_have(self, watermark: int) -> bool:
        """Whether a batch that waits is due by now, or may be full."""
        waiting = self._waiting
        return (
            waiting is None
            or time.monotonic() >= waiting.due_at_s
            or watermark - waiting.read_to >= waiting.lacks
        )

    def is_behind(self, location: int) -> bool:
        """Whether a log at ``location`` has ``BACKLOG_CELLS`` to go, for all that is
        known."""
        return self.left(location) >= BACKLOG_CELLS

    def left(self, location: int) -> int:
        """How many cells a log at ``location`` has to go, for all that is known."""
        return max(0, self.log_end - location)

    def next_chunk(self, location: int) -> Iterator[Batch]:
        """Some batches from ``location`` on; none at the end of the log, or when a batch waits."""
        return (
            self._cells(location)
            if self._trigger.batch is None
            else self._batches(location, self._trigger.batch)
        )

    def _cells(self, location: int) -> Iterator[Batch]:
        if location >= self.log_end:
            return
        takes = self._trigger.takes
        for cell in self._scan(location, CHUNK_CELLS):
            yield ([cell] if takes(cell) else [], cell.added_id + 1)

    def _batches(self, location: int, full: int) -> Iterator[Batch]:
        waited, self._waiting = self._waiting, None
        takes = self._trigger.takes
        cells: list[StoredCell] = []
        body_bytes = decoded_bytes = given = 0
        while given < CHUNK_CELLS:
            read = self._scan(location, max(full, CHUNK_CELLS)) if location < self.log_end else []
            if not read:
                yield from self._last(cells, location, full, waited)
                return
            for cell in read:
                if takes(cell):
                    is_batch_of_one = self._is_batch_of_one(cell.added_id)
                    size = decoded_bytes_bound(cell.body)
                    if cells and (
                        is_batch_of_one
                        or body_bytes + len(cell.body) > SCAN_BYTES_MAX
                        or decoded_bytes + size > SCAN_DECODED_BYTES_MAX
                    ):
                        yield cells, location
                        given, cells, body_bytes, decoded_bytes = given + len(cells), [], 0, 0
                    cells.append(cell)
                    body_bytes, decoded_bytes = body_bytes + len(cell.body), decoded_bytes + size
                    if is_batch_of_one or len(cells) == full:
                        yield cells, cell.added_id + 1
                        given, cells, body_bytes, decoded_bytes = given + len(cells), [], 0, 0
                location = cell.added_id + 1
            if not cells:
                yield [], location
        # The remaining cells are read again with the next chunk: only the end of the log makes a
        # batch that is not full.

    def _last(
        self, cells: list[StoredCell], location: int, full: int, waited: _Waiting | None
    ) -> Iterator[Batch]:
        if not cells:
            return
        now_s = time.monotonic()
        due_at_s = (
            waited.due_at_s
            if waited is not None and waited.first == cells[0].added_id
            else now_s + self._trigger.batch_wait_s
        )
        if due_at_s <= now_s:
            yield cells, location
        else:
            yield [], cells[0].added_id
            self._waiting = _Waiting(cells[0].added_id, due_at_s, location, full - len(cells))
