"""All typed tables of a lake, after each commit of the table of all cells.

The table of all cells is first, always. A typed table that cannot follow (its catalog is away, a
person renamed a column) stops nothing else: the reason is shown. It catches up later, from the
table of all cells, in steps between which the loader reads on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from cellfeed.consumers.lake.contract import LakeTable, State
from cellfeed.consumers.lake.open_table import LakeTables, Place
from cellfeed.consumers.lake.positions import Positions
from cellfeed.consumers.lake.progress import LakeProgress
from cellfeed.consumers.lake.typed.cell_ranges import CellRange, read_range
from cellfeed.consumers.lake.typed.column_tables import ColumnTables

_log = logging.getLogger("cellfeed.consumers.lake")

SCHEMAS_LOOK_S: Final = 5.0
"""Between two looks at the columns' schemas, seconds."""

RETRY_S: Final = 5.0
"""Pause after a column's tables could not follow, seconds."""

ColumnVersions = Mapping[str, Sequence[str]]
"""By column the schemas of its bodies as text, oldest first."""


class _Column:
    """One column, also while its tables cannot be opened."""

    def __init__(self, name: str, versions: Sequence[str]) -> None:
        self.name = name
        self.versions = versions
        self.tables: ColumnTables | None = None
        self.is_behind = True
        self.is_stale = False
        self.not_before = 0.0

    def take(self, versions: Sequence[str]) -> None:
        """Versions are only ever added: with one more there are columns to add, and parked cells to
        try again."""
        if len(versions) > len(self.versions):
            self.versions, self.tables, self.is_behind = versions, None, True


class TypedTables:
    """``schemas``: asks for the columns and their versions; raises Unavailable. Used by the
    loader's thread."""

    def __init__(
        self, place: Place, schemas: Callable[[], ColumnVersions], progress: LakeProgress
    ) -> None:
        self._tables = LakeTables(place)
        self._schemas = schemas
        self._progress = progress
        self._columns: dict[str, _Column] = {}
        self._look_after = float("-inf")

    def follow(self, starts: Positions, ends: Positions, cells: pa.Table, source: str) -> None:
        """Takes the rows of a commit. Columns that are behind, or fail, catch up later."""
        step = CellRange(
            {shard: each.next_id for shard, each in starts.items()},
            {shard: each.next_id for shard, each in ends.items()},
            cells,
        )
        for column in self._known():
            if not self._attempt(column, source, lambda tables: tables.follow(step)):
                column.is_behind = column.is_stale = True

    def catch_up(self, cells: LakeTable, shards: Sequence[int], source: str) -> bool:
        """One step of each column that is behind the table of all cells, or has parked cells to
        try again. True while there are more."""
        behind = [each for each in self._known() if each.is_behind]
        if not behind:
            return False
        state = cells.look()
        ends = {shard: each.next_id for shard, each in state.positions.items() if shard in shards}
        for column in behind:
            self._attempt(
                column,
                source,
                lambda tables, column=column: self._step(  # type: ignore[misc]
                    column, tables, cells.name, state, ends
                ),
            )
        return any(each.is_behind for each in behind)

    def _step(
        self,
        column: _Column,
        tables: ColumnTables,
        name: str,
        cells: State,
        ends: Mapping[int, int],
    ) -> bool:
        if column.is_stale:
            tables.refresh()
            column.is_stale = False
        covered = tables.covered(list(ends))
        left = {shard: end for shard, end in ends.items() if end > covered[shard]}
        if left:
            column.is_stale = not tables.follow(read_range(name, cells, column.name, covered, left))
            return True
        tables.mend(cells)
        column.is_behind = False
        return True

    def _attempt(self, column: _Column, source: str, act: Callable[[ColumnTables], bool]) -> bool:
        if time.monotonic() < column.not_before:
            return False
        try:
            if column.tables is None:
                column.tables = ColumnTables(
                    self._tables, column.name, column.versions, source, self._progress.tables
                )
                column.is_behind = True
            done = act(column.tables)
            self._note(column.name, self._refusals(column.tables))
        except Exception as error:
            # Of any kind: another program may have changed these tables, which stops no cell.
            column.tables, column.is_behind = None, True
            column.not_before = time.monotonic() + RETRY_S
            self._note(column.name, f"{type(error).__name__}: {error}")
            return False
        return done

    def _refusals(self, tables: ColumnTables) -> str:
        return "; ".join(
            f"version {number} of the schema is not taken: {why}"
            for number, why in tables.bodies.schema.refused.items()
        )

    def _known(self) -> list[_Column]:
        now = time.monotonic()
        if now >= self._look_after:
            self._look_after = now + SCHEMAS_LOOK_S
            try:
                found = self._schemas()
            except Exception as error:
                self._note("", f"schemas cannot be read: {error}")
                found = {}
            else:
                self._note("", "")
            for name, versions in found.items():
                known = self._columns.setdefault(name, _Column(name, versions))
                known.take(versions)
        return [self._columns[name] for name in sorted(self._columns)]

    def _note(self, column: str, trouble: str) -> None:
        troubles = self._progress.table_troubles
        if trouble == troubles.get(column, ""):
            return
        if trouble:
            _log.warning("typed tables of column %s: %s", column, trouble)
            troubles[column] = trouble
        else:
            troubles.pop(column)
