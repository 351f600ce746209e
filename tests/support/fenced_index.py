"""An index of one shard, and a store of entries that lets something happen before a write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from cellfeed.store.cells.cell import NewCell, StoredCell, new_cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.index_values import NOTHING, UNFENCED, Entry, IndexTable
from cellfeed.store.engines.contract.indexes import IndexStore
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.errors import StaleView
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.keeper import IndexKeeper
from cellfeed.store.indexes.trimmed import IndexedTrim
from tests.support.index_store_proxy import IndexStoreProxy

COLUMNS = (
    "[{column_name: BASE, fields: [{field: driver, type: string}]}, {column_name: STATUS, fields:"
    " [{field: state, type: string}]}]"
)


DEFINITION = parse_definition(f"{{table: by_driver, datastore: trips, column_defs: {COLUMNS}}}")


CHANGED = parse_definition(
    "{table: by_driver, datastore: trips, column_defs: [{column_name: BASE, fields:"
    " [{field: driver, type: string}]}]}"
)


ROW, OTHER = UUID(int=1), UUID(int=2)


class Held(IndexStoreProxy):
    """Before its first write (or the first removal) ``meanwhile`` is done."""

    def __init__(
        self, store: IndexStore, meanwhile: Callable[[], object], *, at_removal: bool = False
    ) -> None:
        super().__init__(store)
        self.meanwhile = meanwhile
        self.at_removal = at_removal
        self.refused = 0
        self.held = False

    def apply(
        self,
        table: IndexTable,
        entries: Mapping[int, Sequence[Entry]],
        fences: Mapping[int, int] = UNFENCED,
    ) -> None:
        self._write(lambda: self.store.apply(table, entries, fences), not self.at_removal)

    def remove(
        self,
        table: IndexTable,
        entries: Mapping[int, Sequence[Entry]],
        fences: Mapping[int, int] = UNFENCED,
        instead: Mapping[int, Sequence[Entry]] = NOTHING,
    ) -> None:
        self._write(lambda: self.store.remove(table, entries, fences, instead), self.at_removal)

    def _write(self, write: Callable[[], None], holds: bool) -> None:
        if holds and not self.held:
            self.held = True
            self.meanwhile()
        try:
            write()
        except StaleView:
            self.refused += 1
            raise


class Index:
    """A datastore with one shard and an index of it."""

    def __init__(self, engine: SqliteEngine | MySqlEngine) -> None:
        self.datastore = Datastore(engine)
        self.engine = engine
        self.store: IndexStore = engine.indexes
        self.version = self.datastore.indexes.version(
            self.datastore.indexes.catalog.create(DEFINITION)
        )
        self.store.create(self.version.table)
        self.keeper = self.keeper_of(self.store)

    def keeper_of(self, store: IndexStore) -> IndexKeeper:
        return IndexKeeper(self.version, store, self.engine.row_cells)

    def put(self, *cells: NewCell) -> list[StoredCell]:
        start = self.engine.heads()[0].next_added_id
        self.engine.put(list(cells))
        return self.engine.scan(0, start, len(cells))

    def log(self, start: int = 0) -> list[StoredCell]:
        return self.engine.scan(0, start, 1_000)

    def trim(self, below: int) -> None:
        IndexedTrim(self.engine, self.datastore.indexes, self.datastore.trim).step(
            0, self.engine.heads()[0].log_start, below
        )

    def entries(self) -> list[tuple[str, int, bool]]:
        """Of each entry the driver, the row, and whether it is live."""
        found = self.store.walk(self.version.table, 0, None, 100)
        return [
            (str(entry.values[0], "ascii"), UUID(bytes=entry.row_key).int, entry.live)
            for entry in found
            if isinstance(entry.values[0], bytes)
        ]


def base(row: UUID, ref: int, driver: str) -> NewCell:
    return new_cell(row, "BASE", ref, {"driver": driver})


def status(row: UUID, ref: int, state: str) -> NewCell:
    return new_cell(row, "STATUS", ref, {"state": state})
