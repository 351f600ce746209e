"""The newest cells of several logs, for ``tail --last``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from cellfeed.store.api import CellStore
from cellfeed.store.cells.cell import Cell
from cellfeed.store.engines.contract.values import Head

LOOKED_BACK_MAX: Final = 10_000
"""Cells of each shard's end that are looked through for those of a column."""

_PIECE_CELLS: Final = 1_000


def newest_cells(
    store: CellStore, heads: Mapping[int, Head], last: int, column: str | None
) -> list[Cell]:
    """The ``last`` newest cells of all these logs together, the oldest first, up to the watermarks
    in ``heads``; with ``column`` those of it among the last ``LOOKED_BACK_MAX`` of each shard.

    Cells of a shard stay in its order, also where somebody has set the clock back.
    """
    if last == 0:
        return []
    back = last
    while True:
        found = _ends(store, heads, back, column)
        looked_through = all(head.watermark - back <= head.log_start for head in heads.values())
        if column is None or len(found) >= last or looked_through or back >= LOOKED_BACK_MAX:
            return [cell for _, cell in sorted(found, key=lambda each: each[0])[-last:]]
        back = min(back * 10, LOOKED_BACK_MAX)


_Place = tuple[datetime, int, int]


def _ends(
    store: CellStore, heads: Mapping[int, Head], back: int, column: str | None
) -> list[tuple[_Place, Cell]]:
    """The last ``back`` cells of each log, each with its place among those of all logs."""
    locations = {
        shard: max(head.log_start, head.watermark - back)
        for shard, head in heads.items()
        if head.watermark > head.log_start
    }
    found: list[tuple[_Place, Cell]] = []
    latest: dict[int, datetime] = {}
    while locations:
        for shard, piece in store.get_cells_for_shards(locations, min(back, _PIECE_CELLS)).items():
            for cell in piece.cells:
                if cell.added_id >= heads[shard].watermark:
                    break
                moment = max(cell.created_at, latest.get(shard, cell.created_at))
                latest[shard] = moment
                if column is None or cell.column_name == column:
                    found.append(((moment, shard, cell.added_id), cell))
            if piece.cells and piece.next_location < heads[shard].watermark:
                locations[shard] = piece.next_location
            else:
                del locations[shard]
    return found
