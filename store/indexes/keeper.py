"""Keeps the entries of one index version: from cells of a shard's log to entries, wherever these
belong.

A batch holds **all** cells of the indexed columns between its first and its last location; of the
cells before it, the latest of each row is read. So the entries that are written follow from a
prefix of the log (see :mod:`cellfeed.store.indexes.version`). Crash points:

    before the entries are written             nothing: the batch runs again
    between them and the tombstones            the row is found at its old place as well, where a
                                               fresh query does not take it; the batch runs again
    after the tombstones, before the save      the batch runs again and changes nothing

A batch is of one shard, or of several that keep up with their logs
(:meth:`IndexKeeper.apply_together`): the few cells of each cost little more than the commit that
they have in common.

Where the log marks a row as erased, the keeper takes its entries out
(:mod:`cellfeed.store.indexes.erased`). It makes no further entries of the row, even if the row
still has bodies.

**Overtaken.** Merges may be late, and by any process. Entries of cells that were trimmed or erased
since they were read may not be merged: so a batch is written under the fence of its shard, read
before its cells were. If the fence was raised meanwhile, nothing is written, and the rest of the
batch is read again. That holds for the owner of the shard as for one that has lost it: the owner
may have read earlier cells of its batch's rows which are just being trimmed. Keepers of a **new**
version raise the fences when they begin: earlier removers of entries did not look at that version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cellfeed.store.cells.body_codec import is_erased
from cellfeed.store.cells.cell import ERASED_COLUMN, StoredCell
from cellfeed.store.engines.contract.index_values import RowsBelow
from cellfeed.store.engines.contract.indexes import IndexStore
from cellfeed.store.errors import StaleView, StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.indexes.erased import RowCells, remove_entries
from cellfeed.store.indexes.version import IndexVersion, RejectedValue

_LOOKS_MAX: Final = 20
"""How often a batch is read again, where cells are trimmed or erased all the time, before its shard
waits for a moment."""

declare("index.before_entries", "index.before_tombstones", "index.after_tombstones")


class IndexKeeper:
    """See the module. Any number of threads, each with cells of another shard. ``on_rejected`` is
    called with values that are not of their field's type. ``new``: the version is not complete yet.
    It is made before the cells are read that it gets. Raises Unavailable."""

    def __init__(
        self,
        version: IndexVersion,
        store: IndexStore,
        row_cells: RowCells,
        on_rejected: Callable[[Sequence[RejectedValue]], None] = lambda _: None,
        *,
        new: bool = False,
    ) -> None:
        self._version = version
        self._store = store
        self._row_cells = row_cells
        self._on_rejected = on_rejected
        shards = range(version.shards)
        self._fences = store.raise_fences(shards) if new else store.fences(shards)

    def apply(self, shard: int, cells: Sequence[StoredCell]) -> None:
        """Brings the entries of these cells' rows up to the last of them. Raises Unavailable,
        DataDamaged."""
        columns = (*self._version.definition.columns, ERASED_COLUMN)
        begin, end = cells[0].added_id, cells[-1].added_id + 1
        for _ in range(_LOOKS_MAX):
            fence = self._fences[shard]
            try:
                if cells:
                    self._apply({shard: cells}, {shard: fence})
                return
            except StaleView:
                fence = self._store.fences([shard])[shard]
                there = self._store.cells_between(shard, columns, begin, end, fence)
                cells = [
                    cell
                    for cell in there
                    if cell.column_name == ERASED_COLUMN or not is_erased(cell.body)
                ]
                self._fences[shard] = fence
        raise StorageUnavailable(
            f"cells of shard {shard} are trimmed or erased all the time: nothing of {begin} to"
            f" {end - 1} is in the index yet"
        )

    def apply_together(self, cells: Mapping[int, Sequence[StoredCell]]) -> None:
        """As :meth:`apply`, for cells by shard, all entries in one transaction. Raises StaleView
        too, and may have written nothing then or some: then :meth:`apply` is to be called for each
        shard."""
        self._apply(cells, {shard: self._fences[shard] for shard in cells})

    def _apply(
        self, batches: Mapping[int, Sequence[StoredCell]], fences: Mapping[int, int]
    ) -> None:
        version = self._version
        cells = [cell for batch in batches.values() for cell in batch]
        rows = [
            RowsBelow(
                shard,
                list({cell.row_key: None for cell in batch}),
                batch[0].added_id,
                fences[shard],
            )
            for shard, batch in batches.items()
        ]
        before = self._store.latest_before(rows, version.definition.columns)
        erased = {cell.row_key for cell in before if cell.column_name == ERASED_COLUMN}
        entries, tombstones, rejected = [], [], list[RejectedValue]()
        # A row's cells are all in one shard.
        for row_key, view in version.views([*before, *cells]).items():
            if row_key in erased:
                continue
            entry = version.entry_of(view, rejected)
            if entry is not None:
                entries.append(entry)
            tombstones += version.left_places(view, entry)
        failpoint("index.before_entries")
        if entries:
            self._store.apply(version.table, version.by_shard(entries), fences)
        if tombstones:
            failpoint("index.before_tombstones")
            self._store.apply(version.table, version.by_shard(tombstones), fences)
            failpoint("index.after_tombstones")
        for shard, batch in batches.items():
            if erased_rows := [cell.row_key for cell in batch if cell.column_name == ERASED_COLUMN]:
                remove_entries(version, self._store, self._row_cells, shard, erased_rows)
        if rejected:
            self._on_rejected(rejected)
