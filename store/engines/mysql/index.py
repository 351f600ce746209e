"""Index tables on a MySQL server, and their reads: promises X1–X6. Writes are in
``index_writes.py``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cellfeed.store.cells.cell import ERASED_COLUMN, StoredCell
from cellfeed.store.cells.sharding import shards_of
from cellfeed.store.engines.contract.indexes import (
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
    columns_of,
    entries_of,
    literal,
    select_sql,
    selected_entries,
    walk_condition,
)
from cellfeed.store.engines.mysql.cells import CELL, FOUND_KEY, found_by_key, stored_cell
from cellfeed.store.engines.mysql.index_writes import (
    FINDS_MAX,
    MySqlIndexWrites,
)
from cellfeed.store.engines.mysql.statements import query, query_all
from cellfeed.store.errors import StorageUnavailable

_SELECTS_MAX: Final = 50
"""Shards looked at in one statement."""

_DIGITS_MAX: Final = 100
"""Rows compared in one statement: with all columns some hundred subqueries, which the server plans
one by one."""


class MySqlIndexes(MySqlIndexWrites):
    """:class:`cellfeed.store.engines.contract.indexes.NodeIndexStore`. ``meta`` and ``database``
    give checked names; ``shards``: of the datastore."""

    def select(
        self, table: IndexTable, wanted: Sequence[EntrySelect], read_from: Replica = Replica.MASTER
    ) -> Selected:
        if not wanted:
            return Selected([])
        statements = [
            select_sql(table, f"{self._database(each.shard)}.{table.name} WHERE", each, literal)
            for each in wanted
        ]
        with self._server.connection() as connection:
            answers = query_all(connection, statements)
        integers = [
            1 + number
            for number, width in enumerate([None] * len(table.columns) + list(table.widths[1:]))
            if width is None
        ]
        return Selected(
            [
                selected_entries(table, each, _with_integers(rows, integers))
                for each, rows in zip(wanted, answers, strict=True)
            ]
        )

    def find(
        self, table: IndexTable, places: Sequence[tuple[int, Encoded, bytes]]
    ) -> list[Entry | None]:
        found: dict[tuple[int, Encoded, bytes], Entry] = {}
        names = ", ".join(columns_of(table))
        by_shard: dict[int, list[tuple[Encoded, bytes]]] = {}
        for shard, value, row_key in places:
            by_shard.setdefault(shard, []).append((value, row_key))
        with self._server.connection() as connection:
            for shard, wanted in by_shard.items():
                for some in _pieces(wanted):
                    listed = ",".join(
                        f"({literal(value)},{literal(row_key)})" for value, row_key in some
                    )
                    for row in query(
                        connection,
                        f"SELECT {names} FROM {self._database(shard)}.{table.name} WHERE (f0,"
                        f" row_key) IN ({listed})",
                    ):
                        [entry] = _entries(table, [row])
                        found[(shard, *entry.place)] = entry
        return [found.get(place) for place in places]

    def walk(
        self, table: IndexTable, shard: int, after: tuple[Encoded, bytes] | None, limit: int
    ) -> list[Entry]:
        source = (
            f"{self._database(shard)}.{table.name} WHERE {walk_condition(after)} ORDER BY f0,"
            f" row_key LIMIT {limit}"
        )
        with self._server.connection() as connection:
            return _entries(
                table, query(connection, f"SELECT {', '.join(columns_of(table))} FROM {source}")
            )

    def latest_before_or_none(
        self, rows: Sequence[RowsBelow], columns: Sequence[str]
    ) -> list[StoredCell] | None:
        """None when this node does not have a shard's log, or its fence, that far."""
        named = (*columns, ERASED_COLUMN)
        selects = [
            self._latest(
                shard,
                some,
                named,
                f" AND (added_id < {location} OR column_name = {literal(ERASED_COLUMN.encode())})",
            )
            for shard, row_keys, location, _ in rows
            for some in _pieces(row_keys)
        ]
        return (
            self._cells_once_there(
                rows, [" UNION ALL ".join(some) for some in _pieces(selects, _SELECTS_MAX)]
            )
            if selects
            else []
        )

    def cells_between_or_none(
        self, shard: int, columns: Sequence[str], location: int, end: int, fence: int
    ) -> list[StoredCell] | None:
        """The same."""
        named = ",".join(literal(column.encode()) for column in columns)
        where = (
            f"added_id >= {location} AND added_id < {end} AND column_name IN ({named}) ORDER BY"
            " added_id"
        )
        statement = f"SELECT {shard}, {CELL} FROM {self._database(shard)}.cell WHERE {where}"
        return self._cells_once_there([RowsBelow(shard, (), end, fence)], [statement])

    def _cells_once_there(
        self, rows: Sequence[RowsBelow], statements: Sequence[str]
    ) -> list[StoredCell] | None:
        """The cells that the statements give, where all shards' logs and fences have come as far as
        ``rows`` say."""
        # One number for all of it, before the cells: a cell that is counted there is there, or
        # gone, when these are read.
        there = [f"(shard = {each.shard} AND next_added_id >= {each.location})" for each in rows]
        fenced = [
            f"(shard = {each.shard} AND number >= {each.fence})" for each in rows if each.fence
        ]
        counts = [f"(SELECT COUNT(*) FROM {self._meta}.shard_counter WHERE {' OR '.join(there)})"]
        counts += (
            [f"(SELECT COUNT(*) FROM {self._fence_table} WHERE {' OR '.join(fenced)})"]
            if fenced
            else []
        )
        with self._server.connection() as connection:
            [(counted,)], first = query_all(
                connection, [f"SELECT {' + '.join(counts)}", statements[0]]
            )
            if int(counted) < len(there) + len(fenced):
                return None
            return [
                stored_cell(int(row[0]), row[1:])
                for answer in (
                    first,
                    *(query(connection, statement) for statement in statements[1:]),
                )
                for row in answer
            ]

    def latest_before(self, rows: Sequence[RowsBelow], columns: Sequence[str]) -> list[StoredCell]:
        return self._found(
            {each.shard: each.location for each in rows}, self.latest_before_or_none(rows, columns)
        )

    def cells_between(
        self, shard: int, columns: Sequence[str], location: int, end: int, fence: int
    ) -> list[StoredCell]:
        return self._found(
            {shard: end}, self.cells_between_or_none(shard, columns, location, end, fence)
        )

    def _found(
        self, locations: Mapping[int, int], cells: list[StoredCell] | None
    ) -> list[StoredCell]:
        if cells is None:
            raise StorageUnavailable(
                f"{self._server}: logs (or fences) do not reach these locations there, by shard:"
                f" {dict(locations)}"
            )
        return cells

    def outdated(
        self,
        rows: Sequence[RowRefs],
        columns: Sequence[str],
        read_from: Replica = Replica.MASTER,
        shards: Sequence[int] | None = None,
    ) -> Outdated:
        names = [literal(column.encode()) for column in columns]
        # A digit for each row. MAX of one row and column is a look at the end of a range of the
        # unique key, done before the statement runs.
        digits = [
            " AND ".join(
                f"{literal(ref)} <=> (SELECT MAX(ref_key) FROM {self._database(shard)}.cell WHERE"
                f" row_key = {literal(row_key)} AND column_name = {name})"
                for name, ref in zip(names, refs, strict=True)
            )
            for (row_key, refs), shard in zip(
                rows,
                shards or shards_of([row_key for row_key, _ in rows], self._shards),
                strict=True,
            )
        ]
        statements = [f"SELECT CONCAT({','.join(some)})" for some in _pieces(digits, _DIGITS_MAX)]
        with self._server.connection() as connection:
            answers = (
                "".join(row[0] for answer in query_all(connection, statements) for row in answer)
                if statements
                else ""
            )
        return Outdated(
            {row_key for (row_key, _), same in zip(rows, answers, strict=True) if same == "0"}
        )

    def current(
        self,
        row_keys: Mapping[int, Sequence[bytes]],
        columns: Sequence[str] | None,
        read_from: Replica = Replica.MASTER,
    ) -> Current:
        found: dict[bytes, list[LocatedCell]] = {}
        selects = [
            self._latest(shard, some, columns, "")
            for shard, keys in row_keys.items()
            for some in _pieces(keys)
        ]
        with self._server.connection() as connection:
            for row in query(connection, " UNION ALL ".join(selects)) if selects else ():
                cell = stored_cell(int(row[0]), row[1:])
                found.setdefault(cell.row_key, []).append(LocatedCell(int(row[0]), cell))
        return Current(found)

    def _latest(
        self, shard: int, row_keys: Sequence[bytes], columns: Sequence[str] | None, condition: str
    ) -> str:
        """Of each row and column the cell with the highest ref key."""
        cell_table = f"{self._database(shard)}.cell"
        highest = (
            f"SELECT row_key, column_name, MAX(ref_key) AS ref_key FROM {cell_table} WHERE"
            f" {_keys_of(row_keys, columns)}{condition} GROUP BY row_key, column_name"
        )
        return (
            f"SELECT {shard}, {FOUND_KEY}, cell.body, cell.crc FROM ({highest}) AS highest JOIN"
            f" {found_by_key(cell_table)} WHERE entry.row_key = highest.row_key AND"
            " entry.column_name = highest.column_name AND entry.ref_key = highest.ref_key"
        )


def _keys_of(row_keys: Sequence[bytes], columns: Sequence[str] | None) -> str:
    named = (
        ""
        if columns is None
        else f" AND column_name IN ({','.join(literal(column.encode()) for column in columns)})"
    )
    return f"row_key IN ({','.join(map(literal, row_keys))}){named}"


def _pieces(items: Sequence[Any], size: int = FINDS_MAX) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _entries(table: IndexTable, rows: Sequence[tuple[Any, ...]]) -> list[Entry]:
    integers = [
        1 + number
        for number, width in enumerate([None] * (1 + len(table.columns)) + list(table.widths))
        if width is None
    ]
    return entries_of(table, _with_integers(rows, integers))


def _with_integers(
    rows: Sequence[tuple[Any, ...]], positions: Sequence[int]
) -> list[tuple[Any, ...]]:
    """Rows as the server sent them, in text, with integers at these positions."""
    found = []
    for row in rows:
        values = list(row)
        for position in positions:
            if (value := values[position]) is not None:
                values[position] = int(value)
        found.append(tuple(values))
    return found
