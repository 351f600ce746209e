"""The log of a shard, from the source's tables into the target's: raw stored bodies, ids and times
as they are.

Each cell is compared with its checksum on the way, and each id is accounted for: a copy that hid
damage would take the place of the only good one. The target's inserts take longer than that, and
while they run the next step is read. A step is one transaction, with the place where the copy ends:
a copy that was cut off anywhere resumes from there.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from cellfeed.store.clusters.moves.shard_side import ShardSide
from cellfeed.store.engines.contract.scan_gaps import refuse_gap
from cellfeed.store.engines.mysql.cells import CURE, row_literal
from cellfeed.store.engines.mysql.frames import read_cells
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import Trimmed

STEP_CELLS: Final = 10_000
"""Cells in one step: a transaction of a tenth of a second."""

_PART_CELLS: Final = 2_000
"""Cells read in one answer."""

_STEP_BYTES_MAX: Final = 32 << 20
"""Bytes of bodies after which a step ends, with any number of cells."""


class _Step(NamedTuple):
    """Rows from ``first`` up to ``after``, as SQL literals of ``INSERT_COLUMNS``."""

    first: int
    after: int
    rows: list[str]


def copy_log(
    source: ShardSide,
    table: str,
    target: ShardSide,
    first: int,
    end: int,
    on_cells: Callable[[int], None] = lambda _: None,
) -> None:
    """Copies the cells from ``first`` up to ``end`` of a table of the source. ``on_cells`` gets the
    number of ids of each step.

    Raises Trimmed when the cells at ``first`` are gone, DataDamaged, StorageUnavailable.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="copy-log") as reader:
        reading = reader.submit(_read, source, table, first, end)
        while first < end:
            step = reading.result()
            first = step.after
            if first < end:
                reading = reader.submit(_read, source, table, first, end)
            target.append(step.first, step.after, step.rows)
            on_cells(step.after - step.first)


def _read(source: ShardSide, table: str, first: int, end: int) -> _Step:
    rows: list[str] = []
    after, step_bytes = first, 0
    with source.server.connection() as connection:
        while after < min(end, first + STEP_CELLS) and step_bytes < _STEP_BYTES_MAX:
            cells = read_cells(
                connection,
                source.shard,
                table,
                after,
                min(end, first + STEP_CELLS, after + _PART_CELLS) - after,
            )
            # The start is read after the cells, and only rises.
            if (not cells or cells[0].added_id != after) and any(
                int(start) > after for (start,) in query(connection, source.log_start_sql)
            ):
                raise Trimmed(f"{source.server}: {table} was trimmed behind {after}")
            cells = [cell for cell in cells if cell.added_id < end]
            refuse_gap(source.shard, after, cells, after if cells else end, CURE)
            rows += map(row_literal, cells)
            step_bytes += sum(len(cell.body) for cell in cells)
            after = cells[-1].added_id + 1
    return _Step(first, after, rows)
