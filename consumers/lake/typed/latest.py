"""The newest version of each row of a column: the one with the highest ref key.

A merge is one commit. It replaces the files that have an older version of an incoming row, or an
erased one, by files without them. It adds the incoming versions. A version that the table
has in a higher ref key already, or in the same, is left out. So merging the same cells again
changes nothing, and a late lower ref key overwrites nothing.

Rows are looked for by their keys' hashes (:mod:`cellfeed.consumers.lake.typed.row_hashes`). Small
files are merged into one along the way, so that a table has few.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cellfeed.consumers.lake.contract import Addition, LiveFile, State
from cellfeed.consumers.lake.open_table import stage_rows
from cellfeed.consumers.lake.typed.conforming import conform_table
from cellfeed.consumers.lake.typed.following_table import FollowingTable
from cellfeed.consumers.lake.typed.row_hashes import RowHashes, key_halves, key_hashes
from cellfeed.store.errors import ProtectData

FILE_ROWS_MAX: Final = 250_000
"""Rows of one file: a merge has one old file in memory at a time."""

SMALL_ROWS: Final = 32_000
SMALL_FILES_MAX: Final = 8
"""With so many files below ``SMALL_ROWS`` rows a merge makes one of them."""


class LatestMerge:
    """Merges into one table. Belongs to its loader's thread."""

    def __init__(self, latest: FollowingTable) -> None:
        self._latest = latest
        self._hashes = RowHashes()

    def merge(self, ends: Mapping[int, int], rows: pa.Table, erased: pa.Table) -> bool:
        """Typed rows and marks of erased ones; ``ends`` as for
        :meth:`cellfeed.consumers.lake.typed.following_table.FollowingTable.advance`."""
        if not rows.num_rows and not erased.num_rows:
            return self._latest.advance(ends, rows)
        rows = newest_versions(_without_erased(rows, erased))
        moved = {
            shard: end for shard, end in ends.items() if end > self._latest.covered.get(shard, 0)
        }
        return self._latest.advance(
            ends, rows, lambda state: self._addition(state, moved, rows, erased)
        )

    def merge_again(self, rows: pa.Table) -> None:
        """Rows whose place the table's positions have passed (mended cells)."""
        if rows.num_rows:
            rows, none = newest_versions(rows), _NO_MARKS
            self._latest.append(
                self._latest.addition([], rows, {}),
                rows,
                lambda state: self._addition(state, {}, rows, none),
            )

    def _addition(
        self, state: State, moved: Mapping[int, int], rows: pa.Table, erased: pa.Table
    ) -> Addition | None:
        if state.has_row_deletes():
            raise ProtectData(
                f"{self._latest.table.name} has files that delete rows of others: compact it with"
                " an engine of its format"
            )
        live = state.files()
        self._hashes.keep({each.path for each in live})
        small = [each for each in live if each.rows < SMALL_ROWS]
        absorbed = {each.path for each in small} if len(small) >= SMALL_FILES_MAX else set()
        looked = np.sort(np.concatenate([key_hashes(_array(rows)), key_hashes(_array(erased))]))
        removed, kept = [], [rows]
        for file in live:
            joined = file.path in absorbed
            if not joined and not self._hashes.may_have(file.path, looked):
                continue
            old = self._read(file)
            rest, rows = _settled(old, rows, erased)
            if joined or rest.num_rows < old.num_rows:
                removed.append(file.path)
                kept.append(rest)
        kept[0] = rows
        if not removed and not rows.num_rows and not moved:
            return None
        files = [
            file
            for part in _parts(pa.concat_tables(kept))
            for file in stage_rows(self._latest.table, part)
        ]
        return self._latest.addition(files, rows, moved, removed)

    def _read(self, file: LiveFile) -> pa.Table:
        table = pq.read_table(file.path, partitioning=None)
        return conform_table(table, self._latest.table.kind.schema)


def newest_versions(rows: pa.Table) -> pa.Table:
    """Of each row key the row with the highest ref key."""
    if rows.num_rows < 2:
        return rows
    rows = rows.combine_chunks()
    high, low = key_halves(_array(rows))
    refs = rows["ref_key"].to_numpy()
    order = np.lexsort((refs, low, high))
    last = np.ones(len(order), bool)
    last[:-1] = (high[order][1:] != high[order][:-1]) | (low[order][1:] != low[order][:-1])
    if last.all():
        return rows
    return rows.take(pa.array(order[last]))


def _settled(old: pa.Table, rows: pa.Table, erased: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Rows of a file that stay, and incoming ones that are newer than those of the file."""
    both = pa.table({"row_key": rows["row_key"], "new": rows["ref_key"]}).join(
        pa.table({"row_key": old["row_key"], "old": old["ref_key"]}), "row_key", join_type="inner"
    )
    if both.num_rows:
        wins = pc.greater(both["new"], both["old"])
        replaced, late = both.filter(wins)["row_key"], both.filter(pc.invert(wins))["row_key"]
        rows = rows.filter(pc.invert(pc.is_in(rows["row_key"], late.combine_chunks())))
        old = old.filter(pc.invert(pc.is_in(old["row_key"], replaced.combine_chunks())))
    return _without_erased(old, erased), rows


def _without_erased(rows: pa.Table, erased: pa.Table) -> pa.Table:
    """A mark takes the cells that its log has before it; a shard has all cells of a row."""
    if not erased.num_rows or not rows.num_rows:
        return rows
    marks = dict(zip(erased["row_key"].to_pylist(), erased["added_id"].to_pylist(), strict=True))
    of_marks = pc.is_in(rows["row_key"], erased["row_key"].combine_chunks())
    if not pc.any(of_marks).as_py():
        return rows
    stays = [
        added_id >= marks.get(key, -1)
        for key, added_id in zip(
            rows["row_key"].to_pylist(), rows["added_id"].to_pylist(), strict=True
        )
    ]
    return rows.filter(pa.array(stays))


def _parts(rows: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, rows.num_rows, FILE_ROWS_MAX):
        yield rows.slice(start, FILE_ROWS_MAX)


def _array(rows: pa.Table) -> pa.Array:
    column = rows["row_key"]
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


_NO_MARKS: Final = pa.table(
    {"row_key": pa.array([], pa.binary(16)), "added_id": pa.array([], pa.int64())}
)
