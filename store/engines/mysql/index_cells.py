"""The cells on a MySQL server that an index is made of, and the check whether rows of an answer are
the latest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from cellfeed.store.cells.cell import ERASED_COLUMN, StoredCell
from cellfeed.store.cells.sharding import shards_of
from cellfeed.store.engines.contract.index_values import Current, Outdated, RowRefs, RowsBelow
from cellfeed.store.engines.contract.values import LocatedCell
from cellfeed.store.engines.index_sql import literal
from cellfeed.store.engines.mysql.cells import CELL, FOUND_KEY, found_by_key, stored_cell
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.index_writes import FINDS_MAX
from cellfeed.store.engines.mysql.statements import query, query_all

_SELECTS_MAX: Final = 50
"""Shards looked at in one statement."""

_DIGITS_MAX: Final = 100
"""Rows compared in one statement: with all columns some hundred subqueries, which the server plans
one by one."""


class MySqlIndexCells:
    """``meta`` and ``database`` give checked names; ``shards``: of the datastore."""

    def __init__(
        self, server: MySqlServer, meta: str, database: Callable[[int], str], shards: int
    ) -> None:
        self._server = server
        self._meta = meta
        self._database = database
        self._shards = shards

    def latest_before(
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
            for some in pieces(row_keys)
        ]
        return (
            self._cells_once_there(
                rows, [" UNION ALL ".join(some) for some in pieces(selects, _SELECTS_MAX)]
            )
            if selects
            else []
        )

    def between(
        self, shard: int, columns: Sequence[str], location: int, end: int, fence: int
    ) -> list[StoredCell] | None:
        """None when this node does not have the shard's log, or its fence, that far."""
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
            [f"(SELECT COUNT(*) FROM {self._meta}.index_fence WHERE {' OR '.join(fenced)})"]
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

    def outdated(
        self,
        rows: Sequence[RowRefs],
        columns: Sequence[str],
        shards: Sequence[int] | None,
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
        statements = [f"SELECT CONCAT({','.join(some)})" for some in pieces(digits, _DIGITS_MAX)]
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
    ) -> Current:
        found: dict[bytes, list[LocatedCell]] = {}
        selects = [
            self._latest(shard, some, columns, "")
            for shard, keys in row_keys.items()
            for some in pieces(keys)
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


def pieces(items: Sequence[Any], size: int = FINDS_MAX) -> Iterator[Sequence[Any]]:
    """The items, at most ``size`` of them at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
