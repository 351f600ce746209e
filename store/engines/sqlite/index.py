"""Index tables of the embedded engine: a SQLite file of their own, so that entries never wait for
the write lock of puts. Promises X1–X6.

One table for all shards, the shard being the first part of its key.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

from cellfeed.store.cells.cell import ERASED_COLUMN, StoredCell
from cellfeed.store.engines.contract.index_fences import Fences
from cellfeed.store.engines.contract.indexes import (
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
from cellfeed.store.engines.contract.values import LocatedCell, Replica
from cellfeed.store.engines.index_sql import (
    Parameters,
    columns_of,
    entries_of,
    exact_condition,
    select_sql,
    selected_entries,
    values_of,
    walk_condition,
)
from cellfeed.store.engines.sqlite.cells import ADDED_ID_BITS, CELL, stored_cell, stored_cells
from cellfeed.store.engines.sqlite.files import SqliteFile
from cellfeed.store.errors import StaleView
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.limits import ADDED_ID_MAX

declare("sqlite.index.before_commit", "sqlite.index.after_commit", "sqlite.index.before_complete")

_ROWS_TOGETHER: Final = 500
"""Entries that one statement merges, or rows that one compares: each gives up the interpreter's
lock and takes it back, where it holds the file's write lock as well. An entry has at most 27
values."""

_KEYS_MAX: Final = 5000
"""Row keys in one statement: below SQLite's limit of parameters, 32,766. The more of them, the more
lie beside each other."""


class SqliteIndexes:
    """:class:`cellfeed.store.engines.contract.indexes.NodeIndexStore`. ``cells``: the file with the
    cells; ``file``: the index tables'; ``shards``: how many."""

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
            if not connection.execute(
                "SELECT 1 FROM sqlite_master WHERE name = 'index_fence'"
            ).fetchall():
                return {}
            numbers: dict[int, int] = dict(
                connection.execute("SELECT shard, number FROM index_fence")
            )
        return {shard: numbers[shard] for shard in shards if shard in numbers}

    def set_fences(self, numbers: Mapping[int, int], terms: object = None) -> None:
        # The file has one writer at a time, so none that looked at a lower number is at it.
        with self._file.write() as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS index_fence (shard INTEGER PRIMARY KEY, number INTEGER"
                " NOT NULL) STRICT"
            )
            connection.executemany(
                "INSERT INTO index_fence (shard, number) VALUES (?, ?) ON CONFLICT (shard) DO"
                " UPDATE SET number = max(number, excluded.number)",
                list(numbers.items()),
            )

    @staticmethod
    def _look_at(fences: Mapping[int, int], connection: sqlite3.Connection) -> None:
        """X6, in a write's transaction."""
        for shard, number in fences.items():
            if connection.execute(
                "SELECT number FROM index_fence WHERE shard = ?", (shard,)
            ).fetchone() != (number,):
                raise StaleView(
                    f"nothing written: cells of shard {shard} were trimmed or erased since the ones"
                    " were read that the entries come of"
                )

    # --- writing ----------------------------------------------------------------------------------

    def apply(
        self,
        table: IndexTable,
        entries: Mapping[int, Sequence[Entry]],
        fences: Mapping[int, int] = UNFENCED,
        terms: object = None,
    ) -> None:
        with self._file.write() as connection:
            self._look_at(fences, connection)
            _merge(connection, table, entries)
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
            self._look_at(fences, connection)
            for shard, each in entries.items():
                for entry in each:
                    connection.execute(
                        f"DELETE FROM {table.name} WHERE shard = {int(shard)} AND"
                        f" {exact_condition(table, entry, 'IS')}"
                    )
            _merge(connection, table, instead)

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
            return [
                cell for each in rows for cell in self._latest_before(connection, each, columns)
            ]

    @staticmethod
    def _latest_before(
        connection: sqlite3.Connection, rows: RowsBelow, columns: Sequence[str]
    ) -> list[StoredCell]:
        shard, row_keys, location, _ = rows
        below = shard << ADDED_ID_BITS | min(location, ADDED_ID_MAX)
        found: list[StoredCell] = []
        # Every name costs a look at the index for each row, and most shards have never seen an
        # erasure.
        [(erasures,)] = connection.execute(
            "SELECT erasures FROM shard_counter WHERE shard = ?", (shard,)
        ).fetchall()
        names = (*columns, ERASED_COLUMN) if erasures else tuple(columns)
        named = ", ".join("?" * len(names))
        for start in range(0, len(row_keys), _KEYS_MAX):
            some = row_keys[start : start + _KEYS_MAX]
            # max() takes the other columns along; the plus keeps SQLite from walking through all
            # positions below.
            sql = (
                f"SELECT {CELL}, max(ref_key) FROM cell WHERE row_key IN"
                f" ({', '.join('?' * len(some))}) AND column_name IN ({named}) AND (+position < ?"
                f" OR column_name = '{ERASED_COLUMN}') GROUP BY row_key, column_name"
            )
            found += stored_cells(
                shard, [row[:-1] for row in connection.execute(sql, (*some, *names, below))]
            )
        return found

    def latest_before_or_none(
        self, rows: Sequence[RowsBelow], columns: Sequence[str]
    ) -> list[StoredCell] | None:
        return self.latest_before(rows, columns)

    def cells_between(
        self, shard: int, columns: Sequence[str], location: int, end: int, fence: int
    ) -> list[StoredCell]:
        begin, behind = (
            shard << ADDED_ID_BITS | min(each, ADDED_ID_MAX) for each in (location, end)
        )
        named = ", ".join("?" * len(columns))
        sql = (
            f"SELECT {CELL} FROM cell WHERE position >= ? AND position < ? AND +column_name IN"
            f" ({named}) ORDER BY position"
        )
        with self._cells.read() as connection:
            return stored_cells(
                shard, connection.execute(sql, (begin, behind, *columns)).fetchall()
            )

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
        found: set[bytes] = set()
        with self._cells.read() as connection:
            for start in range(0, len(rows), _ROWS_TOGETHER):
                some = rows[start : start + _ROWS_TOGETHER]
                values = [value for row_key, refs in some for value in (row_key, *refs)]
                found.update(
                    row_key
                    for (row_key,) in connection.execute(
                        _outdated_sql(len(some), len(columns)), (*values, *columns)
                    )
                )
        return Outdated(found)

    def current(
        self,
        row_keys: Mapping[int, Sequence[bytes]],
        columns: Sequence[str] | None,
        read_from: Replica = Replica.MASTER,
    ) -> Current:
        keys = [key for some in row_keys.values() for key in some]
        pieces = [keys[start : start + _KEYS_MAX] for start in range(0, len(keys), _KEYS_MAX)]
        found: dict[bytes, list[LocatedCell]] = {}
        # A statement is a snapshot by itself; each costs a reader its turn at the interpreter.
        with self._cells.snapshot() if len(pieces) > 1 else self._cells.read() as connection:
            for piece in pieces:
                for shard, *cell, _ in connection.execute(
                    _current_sql(len(piece), columns), (*piece, *(columns or ()))
                ):
                    stored = stored_cell(shard, tuple(cell))
                    found.setdefault(stored.row_key, []).append(LocatedCell(shard, stored))
        return Current(found)


def _outdated_sql(rows: int, columns: int) -> str:
    """Of so many rows with their refs, given before the column names, those whose highest ref keys
    are others: a look at the end of a range of the unique index for each, and an answer that is
    empty as a rule."""
    each = f"({', '.join('?' * (1 + columns))})"
    refs = [f"r{number}" for number in range(columns)]
    newest = (
        "(SELECT max(ref_key) FROM cell WHERE cell.row_key = given.row_key AND column_name = ?)"
    )
    return (
        f"WITH given(row_key, {', '.join(refs)}) AS (VALUES {', '.join([each] * rows)}) SELECT"
        f" row_key FROM given WHERE {' OR '.join(f'{newest} IS NOT {ref}' for ref in refs)}"
    )


def _current_sql(row_keys: int, columns: Sequence[str] | None) -> str:
    """The newest cell of each column of so many rows, by row key and column name. With max() as the
    only aggregate SQLite takes the other columns from the row that holds the maximum."""
    named = "" if columns is None else f"AND column_name IN ({', '.join('?' * len(columns))}) "
    return (
        f"SELECT position >> {ADDED_ID_BITS}, {CELL}, max(ref_key) FROM cell WHERE row_key IN"
        f" ({', '.join('?' * row_keys)}) {named}GROUP BY row_key, column_name ORDER BY row_key,"
        " column_name"
    )


def _place(entry: Entry) -> Any:
    return entry.place


def _merge(
    connection: sqlite3.Connection, table: IndexTable, entries: Mapping[int, Sequence[Entry]]
) -> None:
    """In the order of the table, so that neighbours are written together."""
    rows = [
        (shard, *values_of(entry))
        for shard, each in sorted(entries.items())
        for entry in sorted(each, key=_place)
    ]
    whole = len(rows) - len(rows) % _ROWS_TOGETHER
    for start in range(0, whole, _ROWS_TOGETHER):
        connection.execute(
            _merge_sql(table, _ROWS_TOGETHER),
            list(chain.from_iterable(rows[start : start + _ROWS_TOGETHER])),
        )
    connection.executemany(_merge_sql(table, 1), rows[whole:])


def _merge_sql(table: IndexTable, rows: int) -> str:
    """All right-hand sides see the row as it was."""
    sets = []
    for number, fields in enumerate(table.columns):
        ref = f"r{number}"
        newer = f"excluded.{ref} IS NOT NULL AND ({ref} IS NULL OR excluded.{ref} > {ref})"
        registers = [
            ref,
            *(["live"] if number == 0 else []),
            *(f"f{field}" for field in fields if field),
        ]
        sets += [
            f"{name} = CASE WHEN {newer} THEN excluded.{name} ELSE {name} END" for name in registers
        ]
    names = ["shard", *columns_of(table)]
    values = ", ".join([f"({', '.join('?' * len(names))})"] * rows)
    return (
        f"INSERT INTO {table.name} ({', '.join(names)}) VALUES {values} ON CONFLICT (shard, f0,"
        f" row_key) DO UPDATE SET {', '.join(sets)}"
    )
