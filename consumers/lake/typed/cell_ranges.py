"""Ranges of shards' logs, as the tables of columns follow them: from memory right after their
commit, or read from the table of all cells."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from cellfeed.consumers.lake.cell_columns import CELLS
from cellfeed.consumers.lake.contract import State
from cellfeed.consumers.lake.typed.conforming import conform
from cellfeed.consumers.lake.typed.uuid_arrays import BYTES
from cellfeed.store.cells.cell import ERASED_COLUMN
from cellfeed.store.errors import ProtectData

READ_CELLS: Final = 150_000
"""Added_ids of one step that is read from the table of all cells: a bound on memory."""


class CellRange(NamedTuple):
    """``starts``, ``ends``: added_ids by shard; ``cells``: at least all cells of the column in
    question, and all marks of erased rows, between."""

    starts: Mapping[int, int]
    ends: Mapping[int, int]
    cells: pa.Table


def read_range(
    name: str, state: State, column: str, starts: Mapping[int, int], ends: Mapping[int, int]
) -> CellRange:
    """The next step from ``starts`` to ``ends``. ``state``: of the table of all cells."""
    behind = {shard: end - starts.get(shard, 0) for shard, end in ends.items()}
    behind = {shard: count for shard, count in behind.items() if count > 0}
    whole = max(sum(behind.values()), 1)
    begin = {shard: starts.get(shard, 0) for shard in behind}
    until = {
        shard: begin[shard] + min(count, -(-count * READ_CELLS // whole))
        for shard, count in behind.items()
    }
    wanted = pc.field("column_name").isin([column, ERASED_COLUMN])
    in_range = None
    for shard, end in until.items():
        ids = pc.field("added_id")
        one = (pc.field("shard") == shard) & (ids >= begin[shard]) & (ids < end)
        in_range = one if in_range is None else in_range | one
    if in_range is None:
        return CellRange(begin, until, CELLS.empty_table())
    found = pa.concat_tables(scanned(name, state, CELLS.names, wanted & in_range))
    return CellRange(begin, until, found.cast(CELLS))


def erased_keys(name: str, cells: State, keys: pa.Array) -> pa.Array:
    """Those of the row keys (16 bytes) that the table of all cells marks as erased."""
    texts = conform(keys, pa.string())
    wanted = (pc.field("column_name") == ERASED_COLUMN) & pc.field("row_key").isin(texts)
    found = pa.concat_tables(scanned(name, cells, ["row_key"], wanted))
    return conform(found["row_key"], BYTES)


def present_ids(name: str, state: State, ids: Collection[tuple[int, int]]) -> set[tuple[int, int]]:
    """Those of the pairs of shard and added_id that a table has."""
    if not ids:
        return set()
    numbers = [added_id for _, added_id in ids]
    wanted = (
        pc.field("shard").isin(sorted({shard for shard, _ in ids}))
        & (pc.field("added_id") >= min(numbers))
        & (pc.field("added_id") <= max(numbers))
    )
    found: set[tuple[int, int]] = set()
    for part in scanned(name, state, ["shard", "added_id"], wanted):
        found |= set(zip(part["shard"].to_pylist(), part["added_id"].to_pylist(), strict=True))
    return found & set(ids)


def scanned(
    name: str, state: State, columns: list[str], wanted: pc.Expression | None
) -> Iterator[pa.Table]:
    """Live rows of a table, file by file; the first part is empty. Raises ProtectData when rows of
    files are deleted by other files."""
    if state.has_row_deletes():
        raise ProtectData(
            f"{name} has files that delete rows of others: compact it with an engine of its format"
        )
    first = True
    for file in state.files():
        part = ds.dataset(file.path, format="parquet").scanner(
            columns=columns, filter=wanted, batch_readahead=2, use_threads=False
        )
        table = part.to_table()
        if first:
            first = False
            yield table.schema.empty_table()
        if table.num_rows:
            yield table
    if first:
        yield pa.table({name: [] for name in columns})


def beyond(rows: pa.Table, covered: Mapping[int, int], starts: Mapping[int, int]) -> pa.Table:
    """The rows of a range that starts at ``starts`` that a table does not have, which has those
    below ``covered``."""
    if all(covered.get(shard, 0) <= start for shard, start in starts.items()):
        return rows
    first = np.zeros(max(starts) + 1, np.int64)
    for shard in starts:
        first[shard] = covered.get(shard, 0)
    has = rows["added_id"].to_numpy() < first[rows["shard"].to_numpy()]
    return rows.filter(pa.array(~has))
