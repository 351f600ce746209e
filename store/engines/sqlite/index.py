"""Index tables of the embedded engine: a SQLite file of their own, so that entries never wait for
the write lock of puts. Promises X1–X6.

One table for all shards, the shard being the first part of its key.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final

from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.contract.index_fences import Fences
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
from cellfeed.store.engines.contract.values import Replica
from cellfeed.store.engines.index_sql import (
    Parameters,
    columns_of,
    entries_of,
    exact_condition,
    select_sql,
    selected_entries,
    walk_condition,
)
from cellfeed.store.engines.sqlite import index_fences
from cellfeed.store.engines.sqlite.files import SqliteFile
from cellfeed.store.engines.sqlite.index_cells import (
    KEYS_MAX,
    cells_between,
    current,
    latest_before,
    outdated,
)
from cellfeed.store.engines.sqlite.index_merge import merge
from cellfeed.store.failpoints import declare, failpoint

declare("sqlite.index.before_commit", "sqlite.index.after_commit", "sqlite.index.before_complete")


class SqliteIndexes:
    """:class:`cellfeed.store.engines.contract.indexes.NodeIndexStore`. ``cells``: the file with the
    cells; ``file``: the index tables'; ``shards``: how many."""

    beside_ends: Final = None
    """A look at cells is cheap."""

    def __init__(self, cells: SqliteFile, file: SqliteFile, shards: int) -> None:
        self._cells = cells
        self._file = file
        self._shards = frozenset(range(shards))
        self._fences = Fences([self])

    # --- tables -----------------------------------------------------------------------------------

    def create(self, table: IndexTable) -> frozenset[int]:
        types = [
            "BLOB NOT NULL",
            "INTEGER NOT NULL",
            "INTEGER NOT NULL",
            *["INTEGER"] * (len(table.columns) - 1),
        ]
        fields = ["INTEGER" if width is None else "BLOB" for width in table.widths]
        fields[0] += " NOT NULL"
        columns = [
            f"{name} {kind}" for name, kind in zip(columns_of(table), types + fields, strict=True)
        ]
        with self._file.write() as connection:
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {table.name} (shard INTEGER NOT NULL,"
                f" {', '.join(columns)}, PRIMARY KEY (shard, f0, row_key)) STRICT, WITHOUT ROWID"
            )
        return self._shards

    def complete(self, table: IndexTable) -> None:
        """Makes the SQL indexes, each in a transaction of its own: one sort of all entries, where
        an entry that is written later has to be put in its place in each of them."""
        for number in range(1, len(table.widths)):
            failpoint("sqlite.index.before_complete")
            with self._file.write() as connection:
                connection.execute(
                    f"CREATE INDEX IF NOT EXISTS {table.name}_f{number} ON {table.name} (shard, f0,"
                    f" f{number}, row_key)"
                )

    def drop(self, table: IndexTable) -> frozenset[int]:
        with self._file.write() as connection:
            connection.execute(f"DROP TABLE IF EXISTS {table.name}")
        return self._shards

    # --- fences -----------------------------------------------------------------------------------

    def fences(self, shards: Sequence[int]) -> dict[int, int]:
        return self._fences.read(shards)

    def raise_fences(self, shards: Sequence[int]) -> dict[int, int]:
        return self._fences.raise_(shards)

    def fence_numbers(self, shards: Sequence[int]) -> dict[int, int]:
        with self._file.snapshot() as connection:
            return index_fences.numbers_of(connection, shards)

    def set_fences(self, numbers: Mapping[int, int], terms: object = None) -> None:
        # The file has one writer at a time, so none that looked at a lower number is at it.
        with self._file.write() as connection:
            index_fences.raise_to(connection, numbers)

    # --- writing ----------------------------------------------------------------------------------

    def apply(
        self,
        table: IndexTable,
        entries: Mapping[int, Sequence[Entry]],
        fences: Mapping[int, int] = UNFENCED,
        terms: object = None,
    ) -> None:
        with self._file.write() as connection:
            index_fences.check(connection, fences)
            merge(connection, table, entries)
            failpoint("sqlite.index.before_commit")
        failpoint("sqlite.index.after_commit")

    def remove(
        self,
        table: IndexTable,
        entries: Mapping[int, Sequence[Entry]],
        fences: Mapping[int, int] = UNFENCED,
        instead: Mapping[int, Sequence[Entry]] = NOTHING,
        terms: object = None,
    ) -> None:
        with self._file.write() as connection:
            index_fences.check(connection, fences)
            for shard, each in entries.items():
                for entry in each:
                    connection.execute(
                        f"DELETE FROM {table.name} WHERE shard = {int(shard)} AND"
                        f" {exact_condition(table, entry, 'IS')}"
                    )
            merge(connection, table, instead)

    # --- reading ----------------------------------------------------------------------------------

    def select(
        self, table: IndexTable, wanted: Sequence[EntrySelect], read_from: Replica = Replica.MASTER
    ) -> Selected:
        with self._file.snapshot() if len(wanted) > 1 else self._file.read() as connection:
            return Selected([self._select(connection, table, each) for each in wanted])

    def _select(
        self, connection: sqlite3.Connection, table: IndexTable, wanted: EntrySelect
    ) -> list[Entry]:
        given = Parameters(wanted.shard)
        sql = select_sql(table, f"{table.name} WHERE shard = ?1 AND", wanted, given.add)
        return selected_entries(table, wanted, connection.execute(sql, given.values).fetchall())

    def find(
        self, table: IndexTable, places: Sequence[tuple[int, Encoded, bytes]]
    ) -> list[Entry | None]:
        sql = (
            f"SELECT {', '.join(columns_of(table))} FROM {table.name} WHERE shard = ? AND f0 = ?"
            " AND row_key = ?"
        )
        with self._file.snapshot() as connection:
            rows = [connection.execute(sql, place).fetchone() for place in places]
        return [None if row is None else entries_of(table, [row])[0] for row in rows]

    def walk(
        self, table: IndexTable, shard: int, after: tuple[Encoded, bytes] | None, limit: int
    ) -> list[Entry]:
        source = (
            f"{table.name} WHERE shard = {int(shard)} AND {walk_condition(after)} ORDER BY f0,"
            f" row_key LIMIT {int(limit)}"
        )
        sql = f"SELECT {', '.join(columns_of(table))} FROM {source}"
        with self._file.read() as connection:
            return entries_of(table, connection.execute(sql).fetchall())

    def latest_before(self, rows: Sequence[RowsBelow], columns: Sequence[str]) -> list[StoredCell]:
        with self._cells.snapshot() as connection:
            return [cell for each in rows for cell in latest_before(connection, each, columns)]

    def latest_before_or_none(
        self, rows: Sequence[RowsBelow], columns: Sequence[str]
    ) -> list[StoredCell] | None:
        return self.latest_before(rows, columns)

    def cells_between(
        self, shard: int, columns: Sequence[str], location: int, end: int, fence: int
    ) -> list[StoredCell]:
        with self._cells.read() as connection:
            return cells_between(connection, shard, columns, location, end)

    def cells_between_or_none(
        self, shard: int, columns: Sequence[str], location: int, end: int, fence: int
    ) -> list[StoredCell] | None:
        return self.cells_between(shard, columns, location, end, fence)

    def outdated(
        self,
        rows: Sequence[RowRefs],
        columns: Sequence[str],
        read_from: Replica = Replica.MASTER,
        shards: Sequence[int] | None = None,
    ) -> Outdated:
        with self._cells.read() as connection:
            return Outdated(outdated(connection, rows, columns))

    def current(
        self,
        row_keys: Mapping[int, Sequence[bytes]],
        columns: Sequence[str] | None,
        read_from: Replica = Replica.MASTER,
    ) -> Current:
        keys = [key for some in row_keys.values() for key in some]
        # A statement is a snapshot by itself; each costs a reader its turn at the interpreter.
        with self._cells.snapshot() if len(keys) > KEYS_MAX else self._cells.read() as connection:
            return Current(current(connection, keys, columns))
