"""The newest cells of thousands of logs, without a look into each: the last cell of a log bounds
the age of all others in it.

The logs are read from the one that was written last, a few cells of each. That ends when no other
log can have a newer cell. The moment of a log's last cell is remembered as long as its
end stays, so a second look reads only the ends that moved.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final, NamedTuple

from cellfeed.status.newest import newest_cells
from cellfeed.store.cells.cell import Cell, microseconds
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import Head, LogRange
from cellfeed.store.errors import Trimmed

FEW_LOGS: Final = 64
"""Up to so many logs each end is read as far as the answer could reach."""

LOOKED_THROUGH_MAX: Final = 2_000
"""Cells of all logs that one answer looks through, after the last cells."""

_ENDS_IN_A_READ: Final = 64
_LOGS_IN_A_STEP: Final = 50
_FIRST_CELLS: Final = 4


class _End(NamedTuple):
    watermark: int
    at_us: int


class NewestCells:
    """Any number of threads may ask."""

    def __init__(self, datastore: Datastore) -> None:
        self._datastore = datastore
        self._lock = threading.Lock()
        self._ends: dict[int, _End] = {}

    def read(self, heads: Mapping[int, Head], last: int, column: str | None) -> list[Cell]:
        """The ``last`` newest cells, the oldest first, up to the watermarks in ``heads``; with
        ``column`` those of it among the cells looked through. Raises Unavailable, DataDamaged."""
        if len(heads) <= FEW_LOGS:
            return newest_cells(self._datastore, heads, last, column)
        moments = self._moments(heads)
        waiting = sorted(moments, key=lambda shard: (moments[shard], shard))
        found: list[Cell] = []
        left = LOOKED_THROUGH_MAX
        while waiting and left > 0:
            full = len(found) == last
            if full and moments[waiting[-1]] <= microseconds(found[0].created_at):
                break
            step = [waiting.pop() for _ in range(min(_LOGS_IN_A_STEP, len(waiting)))]
            # A log's next cells can count only while its oldest cell read so far does.
            bounds = {shard: heads[shard].watermark for shard in step}
            back = _FIRST_CELLS
            while bounds and left > 0:
                read = self._before(bounds, heads, back)
                left -= sum(map(len, read.values()))
                more = [c for cells in read.values() for c in cells]
                found += [c for c in more if column is None or c.column_name == column]
                found = sorted(found, key=_place)[-last:]
                bounds = {
                    shard: cells[0].added_id
                    for shard, cells in read.items()
                    if cells
                    and cells[0].added_id > heads[shard].log_start
                    and (len(found) < last or _place(cells[0]) >= _place(found[0]))
                }
                back *= 2
        return found

    def _before(
        self, bounds: Mapping[int, int], heads: Mapping[int, Head], back: int
    ) -> dict[int, list[Cell]]:
        """Of each log the last ``back`` cells below its bound."""
        starts = {
            shard: max(heads[shard].log_start, bound - back) for shard, bound in bounds.items()
        }
        read = self._datastore.get_cells_for_shards(starts, back)
        return {
            shard: [cell for cell in piece.cells if cell.added_id < bounds[shard]]
            for shard, piece in read.items()
        }

    def _moments(self, heads: Mapping[int, Head]) -> dict[int, int]:
        """When the last cell of each log was written, microseconds since 1970 UTC."""
        with self._lock:
            moved = [
                LogRange(shard, head.watermark - 1, 1)
                for shard, head in heads.items()
                if head.watermark > head.log_start
                and (shard not in self._ends or self._ends[shard].watermark != head.watermark)
            ]
            for start in range(0, len(moved), _ENDS_IN_A_READ):
                some = moved[start : start + _ENDS_IN_A_READ]
                try:
                    read = self._datastore.engine.scan_many(some)
                except Trimmed:
                    continue  # since the heads were looked at: the next answer has them
                for asked, cells in zip(some, read, strict=True):
                    if cells:
                        end = _End(asked.location + 1, cells[0].created_at_us)
                        self._ends[asked.shard] = end
            return {
                shard: self._ends[shard].at_us
                for shard, head in heads.items()
                if head.watermark > head.log_start and shard in self._ends
            }


def _place(cell: Cell) -> tuple[int, int, int]:
    return microseconds(cell.created_at), cell.shard, cell.added_id
