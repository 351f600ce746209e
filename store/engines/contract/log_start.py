"""The start of a shard's log, as scans and trims of every engine see it (E7, E15).

A scan reads its cells first. Cells disappear from the front of the log only. So where the first
cell found lies at the location asked for, nothing had been trimmed there, and the scan is done.

Otherwise the scan reads the log start, **after** the cells. The log start only rises: if it is at
or below the location then, it was so when the cells were read. So a cell that the scan did not find
was never there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.errors import InvalidLocation, Trimmed
from cellfeed.store.limits import TRIM_STEP_BYTES


def check_scan(
    shard: int, location: int, found: Sequence[StoredCell], log_start: Callable[[], int]
) -> None:
    """Raises Trimmed when the cells at the location asked for are gone. ``found``: the cells read
    there; ``log_start`` reads the shard's log start."""
    if (not found or found[0].added_id != location) and location < (start := log_start()):
        raise Trimmed(
            f"location {location} of shard {shard} was trimmed: its log begins at {start}; resume"
            " there, or at a time, if the trimmed cells are not needed"
        )


def check_trim(shard: int, below: int, end: int) -> None:
    """Raises InvalidLocation for a trim beyond ``end``, where the log ends or where it may not be
    trimmed yet."""
    if below > end:
        raise InvalidLocation(
            f"shard {shard} cannot be trimmed below {below}: only cells below {end} may go now"
        )


def step_end(start: int, below: int, cells_max: int, sizes: Sequence[tuple[int, int]]) -> int:
    """Where the log starts after one step of a trim. ``sizes``: added_id and bytes of the first
    ``cells_max`` cells from ``start`` on, below ``below``."""
    step_bytes = 0
    for index, (added_id, size) in enumerate(sizes):
        step_bytes += size
        if index and step_bytes > TRIM_STEP_BYTES:
            return added_id
    return sizes[-1][0] + 1 if len(sizes) == cells_max else max(start, below)
