"""Keeps the entries of one index version: from cells of a shard's log to entries, wherever these belong.

A batch holds **all** cells of the indexed columns between its first and its last location; of what came before, the latest of each row is read. So the entries
that are written follow from a prefix of the log (see :mod:`store.indexes.version`). Crash points:

    before the entries are written             nothing: the batch runs again
    between them and the tombstones            the row is found at its old place as well, where a fresh query does not take it; the batch runs again
    after the tombstones, before the save      the batch runs again and changes nothing

Where the log tells that a row was erased, its entries are taken out by what was noted of their places (:mod:`store.indexes.erased`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from store.cells import ERASED_COLUMN, StoredCell
from store.engines.contract import StateTable
from store.engines.index_contract import Entry, IndexStore
from store.failpoints import declare, failpoint
from store.gathered import Gathered
from store.indexes.erased import remove_noted
from store.indexes.version import IndexVersion, Places, UnfitValue

_GATHERED_BELOW: Final = 500
"""Entries from which on they are a transaction by themselves: what a commit costs weighs little there, and nobody else is to wait for them."""

declare("index.before_entries", "index.before_tombstones", "index.after_tombstones")


class IndexKeeper:
    """See the module. Any number of threads, each with cells of another shard. ``on_unfit`` is called with values that are not of their field's type."""

    def __init__(self, version: IndexVersion, store: IndexStore, state: StateTable, on_unfit: Callable[[Sequence[UnfitValue]], None] = lambda _: None) -> None:
        self._version = version
        self._store = store
        self._state = state
        self._writes: Gathered[Places] = Gathered(self._write)
        self._on_unfit = on_unfit

    def apply(self, shard: int, cells: Sequence[StoredCell]) -> None:
        """Brings the entries of these cells' rows up to the last of them. Raises Unavailable, DataDamaged."""
        version = self._version
        row_keys = list({cell.row_key: None for cell in cells})
        before = self._store.latest_before(shard, row_keys, version.definition.columns, cells[0].added_id)
        entries, tombstones, unfit = [], [], list[UnfitValue]()
        for view in version.views([*before, *cells]).values():
            entry = version.entry_of(view, unfit)
            if entry is not None:
                entries.append(entry)
            tombstones += version.left_places(view, entry)
        failpoint("index.before_entries")
        if entries:
            self._merge(entries)
        if tombstones:
            failpoint("index.before_tombstones")
            self._merge(tombstones)
            failpoint("index.after_tombstones")
        if erased := [cell.row_key for cell in cells if cell.column_name == ERASED_COLUMN]:
            remove_noted(self._version, self._store, self._state, erased)
        if unfit:
            self._on_unfit(unfit)

    def _merge(self, entries: Sequence[Entry]) -> None:
        """A few entries, as new cells make them, go with those of other shards that are written at the same time: a commit costs the same whatever it carries,
        and merging minds no order (X1)."""
        by_shard = self._version.by_shard(entries)
        if len(entries) < _GATHERED_BELOW:
            self._writes.call(by_shard)
        else:
            self._write([by_shard])

    def _write(self, calls: Sequence[Places]) -> None:
        entries: Places = {}
        for each in calls:
            for shard, some in each.items():
                entries.setdefault(shard, []).extend(some)
        self._store.apply(self._version.table, entries)
