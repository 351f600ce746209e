"""The tables of one column, step by step with that of all cells.

Each has positions of its own, and a crash may leave them at different ones. None passes a cell that
it lacks, and each continues at its own position, from the table of all cells.
"""

from __future__ import annotations

from collections.abc import Sequence

from cellfeed.consumers.lake.contract import State, TableKind
from cellfeed.consumers.lake.open_table import LakeTables
from cellfeed.consumers.lake.progress import TableProgress
from cellfeed.consumers.lake.typed.bodies import ColumnBodies
from cellfeed.consumers.lake.typed.cell_ranges import CellRange, beyond
from cellfeed.consumers.lake.typed.column_kinds import latest_kind, parked_kind, typed_kind
from cellfeed.consumers.lake.typed.following_table import FollowingTable
from cellfeed.consumers.lake.typed.latest import LatestMerge
from cellfeed.consumers.lake.typed.parking import mend, without_parked
from cellfeed.consumers.lake.typed.typed_cells import erased_rows, typed_cells
from cellfeed.store.failpoints import declare, failpoint

declare("lake_typed.parked", "lake_typed.added", "lake_typed.merged")


class ColumnTables:
    """Made with the column's versions as they are known; others make another one. Used by the
    loader's thread."""

    def __init__(
        self,
        tables: LakeTables,
        column: str,
        versions: Sequence[str],
        source: str,
        progress: dict[str, TableProgress],
    ) -> None:
        """Makes the tables or adds their columns. Raises Unavailable, ProtectData."""
        self.column = column
        self.bodies = ColumnBodies(column, versions)
        self._tables = tables
        self._source = source
        self._progress = progress
        fields = self.bodies.schema.fields
        self.typed = self._open(typed_kind(column, fields))
        self.latest = self._open(latest_kind(column, fields))
        self._merge = LatestMerge(self.latest)
        found = tables.find(parked_kind(column))
        self.parked = self._open(parked_kind(column)) if found is not None else None
        self._is_mended = self.parked is None

    def refresh(self) -> None:
        """Reads all positions from the tables, after an error or a commit of others."""
        for each in filter(None, (self.typed, self.latest, self.parked)):
            each.refresh()

    def covered(self, shards: Sequence[int]) -> dict[int, int]:
        """By shard, the added_id that the table furthest behind lacks."""
        return {
            shard: min(self.typed.covered.get(shard, 0), self.latest.covered.get(shard, 0))
            for shard in shards
        }

    def follow(self, step: CellRange) -> bool:
        """Takes a range; False when a table lacks rows before it, or others moved a table."""
        behind = [each for each in (self.typed, self.latest) if each.lacks(step.starts)]
        if behind:
            return False
        found = typed_cells(self.bodies, step.cells)
        typed = self.typed
        unfit = beyond(found.unfit, typed.covered, step.starts)
        if unfit.num_rows:
            parked = self.parked = self.parked or self._open(parked_kind(self.column))
            unfit = beyond(unfit, parked.covered, step.starts)
            if not parked.advance(step.ends, unfit):
                return False
            self._count_parked()
            failpoint("lake_typed.parked")
        rows = beyond(found.rows, typed.covered, step.starts)
        if self.parked is not None:
            rows = without_parked(self.parked, typed.covered, step, rows)
        if not typed.advance(step.ends, rows):
            return False
        failpoint("lake_typed.added")
        rows = beyond(found.rows, self.latest.covered, step.starts)
        erased = erased_rows(step.cells)
        if not self._merge.merge(step.ends, rows, erased):
            return False
        failpoint("lake_typed.merged")
        return True

    def mend(self, cells: State) -> int:
        """Loads parked cells that fit by now, once for each set of versions. ``cells``: of the
        table of all cells."""
        if self._is_mended or self.parked is None:
            return 0
        self.parked.refresh()
        done = mend(self.parked, self.typed, self.bodies, cells, self._merge.merge_again)
        self._is_mended = True
        self._count_parked()
        return done

    def _count_parked(self) -> None:
        if self.parked is not None:
            files = self.parked.table.look().files()
            self.parked.progress.parked = sum(each.rows for each in files)

    def _open(self, kind: TableKind) -> FollowingTable:
        progress = self._progress.setdefault(kind.name, TableProgress())
        return FollowingTable(self._tables, kind, self._source, progress)
