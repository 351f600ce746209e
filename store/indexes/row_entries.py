"""The entries that rows should have by their cells, and those that they have: a check and a trim
compare them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cellfeed.store.cells.cell import ERASED_COLUMN
from cellfeed.store.engines.contract.index_values import Encoded, Entry, RowsBelow
from cellfeed.store.engines.contract.indexes import IndexStore
from cellfeed.store.indexes.version import IndexVersion, RowView


class RowEntries:
    """Of one index version."""

    def __init__(self, store: IndexStore, version: IndexVersion) -> None:
        self._store = store
        self._version = version

    def wanted(
        self, shard: int, row_keys: Sequence[bytes], end: int, fence: int
    ) -> dict[bytes, Entry | None]:
        """The entries that rows of a shard should have by the cells that it has of them below a
        location; none for a row that is erased."""
        cells = (
            self._store.latest_before(
                [RowsBelow(shard, row_keys, end, fence)], self._version.definition.columns
            )
            if row_keys
            else []
        )
        erased = {cell.row_key for cell in cells if cell.column_name == ERASED_COLUMN}
        views = self._version.views(cell for cell in cells if cell.row_key not in erased)
        return {
            row_key: self._version.entry_of(views.get(row_key, RowView([], {})))
            for row_key in row_keys
        }

    def found(self, places: Iterable[tuple[Encoded, bytes]]) -> dict[tuple[Encoded, bytes], Entry]:
        """The entries at these places (shard value, row key), tombstones among them."""
        wanted = [
            (self._version.shard_of_value(value), value, row_key) for value, row_key in places
        ]
        return (
            {
                entry.place: entry
                for entry in self._store.find(self._version.table, wanted)
                if entry is not None
            }
            if wanted
            else {}
        )
