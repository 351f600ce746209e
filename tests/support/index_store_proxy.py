"""An index store that passes every call on: a test changes a call of it by a method of a
subclass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.contract.index_values import (
    NOTHING,
    UNFENCED,
    Current,
    Encoded,
    Entry,
    EntrySelect,
    IndexTable,
    Outdated,
    RowRefs,
    RowsBelow,
    Selected,
)
from cellfeed.store.engines.contract.indexes import IndexStore
from cellfeed.store.engines.contract.log_ends import SelectBesideEnds
from cellfeed.store.engines.contract.values import Replica


class IndexStoreProxy:
    """:class:`cellfeed.store.engines.contract.indexes.IndexStore`."""

    def __init__(self, store: IndexStore) -> None:
        self.store = store

    def create(self, table: IndexTable) -> frozenset[int]:
        return self.store.create(table)

    def complete(self, table: IndexTable) -> None:
        self.store.complete(table)

    def drop(self, table: IndexTable) -> frozenset[int]:
        return self.store.drop(table)

    def fences(self, shards: Sequence[int]) -> dict[int, int]:
        return self.store.fences(shards)

    def raise_fences(self, shards: Sequence[int]) -> dict[int, int]:
        return self.store.raise_fences(shards)

    def apply(
        self,
        table: IndexTable,
        entries: Mapping[int, Sequence[Entry]],
        fences: Mapping[int, int] = UNFENCED,
    ) -> None:
        self.store.apply(table, entries, fences)

    def remove(
        self,
        table: IndexTable,
        entries: Mapping[int, Sequence[Entry]],
        fences: Mapping[int, int] = UNFENCED,
        instead: Mapping[int, Sequence[Entry]] = NOTHING,
    ) -> None:
        self.store.remove(table, entries, fences, instead)

    def select(
        self, table: IndexTable, wanted: Sequence[EntrySelect], read_from: Replica = Replica.MASTER
    ) -> Selected:
        return self.store.select(table, wanted, read_from)

    @property
    def beside_ends(self) -> SelectBesideEnds | None:
        return self.store.beside_ends

    def find(
        self, table: IndexTable, places: Sequence[tuple[int, Encoded, bytes]]
    ) -> list[Entry | None]:
        return self.store.find(table, places)

    def walk(
        self, table: IndexTable, shard: int, after: tuple[Encoded, bytes] | None, limit: int
    ) -> list[Entry]:
        return self.store.walk(table, shard, after, limit)

    def latest_before(self, rows: Sequence[RowsBelow], columns: Sequence[str]) -> list[StoredCell]:
        return self.store.latest_before(rows, columns)

    def cells_between(
        self, shard: int, columns: Sequence[str], location: int, end: int, fence: int
    ) -> list[StoredCell]:
        return self.store.cells_between(shard, columns, location, end, fence)

    def outdated(
        self, rows: Sequence[RowRefs], columns: Sequence[str], read_from: Replica = Replica.MASTER
    ) -> Outdated:
        return self.store.outdated(rows, columns, read_from)

    def current(
        self,
        row_keys: Mapping[int, Sequence[bytes]],
        columns: Sequence[str] | None,
        read_from: Replica = Replica.MASTER,
    ) -> Current:
        return self.store.current(row_keys, columns, read_from)
