"""A table that follows the table of all cells, with a vector of positions of its own.

Its positions are in its own commits, as those of every table of a lake (``docs/inside/lake.md``).
They count added_ids: the table has its share of all cells below them. A step that has none of its
cells moves no position at once: such a step is only remembered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from cellfeed.consumers.lake.appending import Appending, Outcome, Remake, refuse_other_source
from cellfeed.consumers.lake.contract import Addition, DataFile, LakeTable, State, TableKind
from cellfeed.consumers.lake.open_table import LakeTables, stage_rows
from cellfeed.consumers.lake.positions import START, Position
from cellfeed.consumers.lake.progress import TableProgress

EMPTY_CELLS_MAX: Final = 200_000
"""Added_ids of other columns that a table may be behind its commit: a restart reads them again."""


class FollowingTable:
    """``covered``: by shard, the added_id below which the table has all its rows."""

    def __init__(
        self, tables: LakeTables, kind: TableKind, source: str, progress: TableProgress
    ) -> None:
        """Makes the table, or adds the columns that it lacks. Raises Unavailable, and ProtectData
        for a table of another log."""
        self.table: LakeTable = tables.make(kind, source)
        self.table.evolve(kind.schema)
        self.progress = progress
        self._source = source
        self._at: dict[int, Position] = {}
        self.covered: dict[int, int] = {}
        self.refresh()

    def refresh(self) -> State:
        """Reads the positions from the table."""
        state = self.table.look()
        refuse_other_source(self.table.name, state.source, self._source)
        self._at = dict(state.positions)
        self.covered = {shard: each.next_id for shard, each in self._at.items()}
        return state

    def lacks(self, starts: Mapping[int, int]) -> bool:
        """Whether rows before a range are missing."""
        return any(self.covered.get(shard, 0) < start for shard, start in starts.items())

    def advance(
        self, ends: Mapping[int, int], rows: pa.Table, remake: Remake | None = None
    ) -> bool:
        """Adds the rows between ``covered`` and ``ends``. False when another loader was faster:
        look again. Raises Unavailable, OSError and errors of the library; then :meth:`refresh` is
        due."""
        ends = {shard: end for shard, end in ends.items() if end > self.covered.get(shard, 0)}
        if not ends:
            return True
        if not rows.num_rows and remake is None and self._skipped(ends) < EMPTY_CELLS_MAX:
            self.covered |= ends
            return True
        starts = {shard: self._at.get(shard, START) for shard in ends}
        moved = {shard: Position(end, end) for shard, end in ends.items()}
        files = [] if remake is not None else stage_rows(self.table, rows)
        addition = Addition(self._source, files, starts, moved, newest_us(rows))
        if self.append(addition, rows, remake) is Outcome.OVERTAKEN:
            return False
        self._at |= moved
        self.covered |= ends
        return True

    def append(self, addition: Addition, rows: pa.Table, remake: Remake | None = None) -> Outcome:
        """One commit, which adds ``rows`` and moves no remembered position."""
        appending = Appending(self.table, addition, remake)
        outcome = appending.run()
        if outcome is Outcome.LANDED:
            files = appending.addition.files
            self.progress.commits += 1
            self.progress.rows += rows.num_rows
            self.progress.files += len(files)
            self.progress.bytes += sum(each.bytes for each in files)
        return outcome

    def addition(
        self,
        files: Sequence[DataFile],
        rows: pa.Table,
        ends: Mapping[int, int],
        removed: Sequence[str] = (),
    ) -> Addition:
        """An addition for a ``remake``. Without ``ends`` it moves no position."""
        return Addition(
            self._source,
            files,
            {shard: self._at.get(shard, START) for shard in ends},
            {shard: Position(end, end) for shard, end in ends.items()},
            newest_us(rows),
            removed,
        )

    def _skipped(self, ends: Mapping[int, int]) -> int:
        return sum(end - self._at.get(shard, START).next_id for shard, end in ends.items())


def newest_us(rows: pa.Table) -> int:
    """The last ``created_at`` of rows, microseconds since 1970; 0 without rows."""
    newest = pc.max(rows["created_at"].cast(pa.int64())).as_py()
    return int(newest or 0)
