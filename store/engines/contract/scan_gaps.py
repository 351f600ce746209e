"""Whether a scan has found every cell that it should have: a log has no gaps (E2), so a missing
cell inside it is lost, and the scan is not just shorter."""

from __future__ import annotations

from collections.abc import Sequence

from cellfeed.store.cells.cell import RESTORED_COLUMN, StoredCell
from cellfeed.store.errors import DataDamaged


def has_gap(location: int, cells: Sequence[StoredCell]) -> bool:
    """Whether the cells of a scan, in order, are not those from ``location`` on, one after the
    other."""
    return bool(cells) and (
        cells[0].added_id != location or cells[-1].added_id != location + len(cells) - 1
    )


def refuse_gap(shard: int, location: int, cells: Sequence[StoredCell], end: int, cure: str) -> None:
    """Raises DataDamaged unless every id from ``location`` up to ``end`` has a cell, or was left
    out by a restore: then the next cell says so (E23). ``cure``: the step that mends it, for the
    operator.
    """
    expected = location
    for cell in cells:
        if cell.added_id < expected:
            raise DataDamaged(
                f"shard {shard} gives added_id {cell.added_id} where {expected} was asked for: its"
                f" cells lie in a wrong order. {cure}"
            )
        if cell.added_id != expected and cell.column_name != RESTORED_COLUMN:
            raise _lost(shard, expected, cell.added_id, cure)
        expected = cell.added_id + 1
    if expected < end:
        raise _lost(shard, expected, end, cure)


def _lost(shard: int, first: int, end: int, cure: str) -> DataDamaged:
    return DataDamaged(
        f"shard {shard} has no cells from added_id {first} to {end - 1}: they are lost. {cure}"
    )
