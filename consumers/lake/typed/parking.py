"""Cells that fit no schema of their column: in a table of their own, with the reason, until the
schema is mended.

**Parked before passed.** The cells of a range are parked before the typed table passes the range.
That commit moves the positions of the table of parked cells. After a crash between the two, the
typed table leaves out the parked cells of the range. It takes the others, as the first judgement
had it: a schema that came meanwhile changes nothing of that.

**Loaded before taken off.** A cell that fits by now is added to the typed table, unless that has
its shard and added_id. Then it leaves the table of parked cells. After a
crash between the two the typed table has it already. Each of both is a compare-and-set on the state
whose rows were compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cellfeed.consumers.lake.contract import Addition, LiveFile, State
from cellfeed.consumers.lake.open_table import stage_rows
from cellfeed.consumers.lake.typed.bodies import ColumnBodies
from cellfeed.consumers.lake.typed.cell_ranges import CellRange, erased_keys, present_ids
from cellfeed.consumers.lake.typed.conforming import conform_table
from cellfeed.consumers.lake.typed.following_table import FollowingTable
from cellfeed.consumers.lake.typed.typed_cells import typed_cells
from cellfeed.store.failpoints import declare, failpoint

declare("lake_typed.mended.added", "lake_typed.mended.latest")

Merge = Callable[[pa.Table], None]

_IDS: Final = ["shard", "added_id"]


def without_parked(
    parked: FollowingTable, covered: dict[int, int], step: CellRange, rows: pa.Table
) -> pa.Table:
    """The typed rows of a range that are not parked. Only where the table of parked cells is ahead
    of the typed one can there be any."""
    ahead = [shard for shard in step.ends if parked.covered.get(shard, 0) > covered.get(shard, 0)]
    if not ahead or not rows.num_rows:
        return rows
    among = pairs(rows)
    has = present_ids(parked.table.name, parked.table.look(), among)
    return rows.filter(pa.array([each not in has for each in among])) if has else rows


def mend(
    parked: FollowingTable,
    typed: FollowingTable,
    column: ColumnBodies,
    cells: State,
    merge: Merge,
) -> int:
    """Loads the parked cells that fit by now, file by file; returns their number. ``merge``: into
    the newest version of each row."""
    done = 0
    for file in parked.table.look().files():
        done += _mend_file(parked, typed, column, cells, merge, file)
    return done


def _mend_file(
    parked: FollowingTable,
    typed: FollowingTable,
    column: ColumnBodies,
    cells: State,
    merge: Merge,
    file: LiveFile,
) -> int:
    kind = parked.table.kind
    rows = conform_table(pq.read_table(file.path, partitioning=None), kind.schema)
    fits, unfit = typed_cells(column, rows)
    has = present_ids(typed.table.name, typed.table.look(), pairs(unfit))
    if has:  # a loader that knew a later schema was beside one that parked them
        unfit = unfit.filter(pa.array([each not in has for each in pairs(unfit)]))
    erased = erased_keys("cells", cells, rows["row_key"].combine_chunks())
    if len(erased):
        fits = fits.filter(pc.invert(pc.is_in(fits["row_key"], erased)))
        unfit = unfit.filter(pc.invert(pc.is_in(unfit["row_key"], erased)))
    if unfit.num_rows == rows.num_rows:
        return 0
    _add_absent(typed, fits)
    failpoint("lake_typed.mended.added")
    merge(fits)
    failpoint("lake_typed.mended.latest")

    def replaced(state: State) -> Addition | None:
        if file.path not in {each.path for each in state.files()}:
            return None  # replaced by others: the next look judges their files
        return parked.addition(stage_rows(parked.table, unfit), unfit, {}, [file.path])

    parked.append(parked.addition([], unfit, {}), unfit.slice(0, 0), replaced)
    done: int = rows.num_rows - unfit.num_rows
    return done


def _add_absent(typed: FollowingTable, rows: pa.Table) -> None:
    def absent(state: State) -> Addition | None:
        has = present_ids(typed.table.name, state, pairs(rows))
        new = rows.filter(pa.array([each not in has for each in pairs(rows)], pa.bool_()))
        if not new.num_rows:
            return None
        return typed.addition(stage_rows(typed.table, new), new, {})

    typed.append(typed.addition([], rows, {}), rows, absent)


def pairs(rows: pa.Table) -> list[tuple[int, int]]:
    """Shard and added_id of each row."""
    return list(zip(*(rows[name].to_pylist() for name in _IDS), strict=True))
