"""Mends the differences between an index and the cells.

A repair removes exactly the entry that was found wrong; another one that has taken its place
meanwhile stays. It leaves a tombstone where the row has been before, so that no late writer writes
the row there again. Then it merges the right entry. Killed in between, the entry is missing, and
the next repair finds that.
"""

from __future__ import annotations

from collections.abc import Mapping

from cellfeed.store.cells.cell import ERASED_COLUMN
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.index_values import NOTHING, Entry, RowsBelow
from cellfeed.store.errors import StaleView
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.indexes.difference import CheckReport, Difference
from cellfeed.store.indexes.version import IndexVersion

declare("index.repair.between")


class IndexRepair:
    """Used by one thread. ``report``: of the check that found the differences."""

    def __init__(self, engine: Engine, version: IndexVersion, report: CheckReport) -> None:
        self._engine = engine
        self._store = engine.indexes
        self._version = version
        self._report = report

    def repair(self, difference: Difference) -> None:
        """Mends one difference; counts its row as unsettled where cells of its shard were trimmed
        or erased since it was found. Raises Unavailable."""
        try:
            self._repair(
                difference, {shard_of(difference.row_key, self._engine.shards): difference.fence}
            )
        except StaleView:
            self._report.unsettled += 1

    def _repair(self, difference: Difference, fences: Mapping[int, int]) -> None:
        if difference.found is not None:
            wanted = difference.wanted
            self._store.remove(
                self._version.table,
                {difference.shard: [difference.found]},
                fences,
                {difference.shard: [wanted]}
                if wanted is not None and wanted.place == difference.found.place
                else NOTHING,
            )
            failpoint("index.repair.between")
            if (
                difference.kind == "stale"
                and (tombstone := self._tombstone(difference)) is not None
            ):
                self._store.apply(self._version.table, {difference.shard: [tombstone]}, fences)
        if difference.wanted is not None:
            self._store.apply(
                self._version.table, self._version.by_shard([difference.wanted]), fences
            )

    def _tombstone(self, difference: Difference) -> Entry | None:
        """For a place that the row has left, as of its latest cell of the first column. None where
        that cell names the place: the row is there, or has come back since it was looked at, and
        its entry has the same ref key as the tombstone would. None also where no such cell is there
        any more, and for an erased row: nothing of it may stay."""
        row_key, found = difference.row_key, difference.found
        if found is None:
            return None
        shard = shard_of(row_key, self._engine.shards)
        end = self._engine.heads([shard])[shard].watermark
        cells = self._store.latest_before(
            [RowsBelow(shard, [row_key], end, difference.fence)],
            self._version.definition.columns[:1],
        )
        if not cells or any(cell.column_name == ERASED_COLUMN for cell in cells):
            return None
        latest = cells[0]
        if self._version.values_of(0, latest)[0] == found.place[0]:
            return None
        return self._version.tombstone(row_key, found.place[0], latest.ref_key)
