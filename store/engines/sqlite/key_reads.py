"""Reads of cells by key, inside a read transaction: by triple, the latest of a column, a row. Their
answers have a bounded size (E26)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cellfeed.store.cells.cell import StoredCell, Triple
from cellfeed.store.engines.contract.read_bounds import Page
from cellfeed.store.engines.contract.values import LocatedCell
from cellfeed.store.engines.sqlite.cells import (
    ADDED_ID_BITS,
    CELL,
    position_of,
    stored_cell,
    stored_cells,
)
from cellfeed.store.engines.sqlite.keys import (
    Key,
    behind_latest,
    refuse_hidden,
    refuse_hidden_of_row,
)


def get(connection: sqlite3.Connection, triples: Sequence[Triple]) -> list[LocatedCell | None]:
    """The cells of these triples, up to a full page. Raises DataDamaged."""
    return _page(
        find_indexed(connection, triple) or _first_sure(connection, iter(()), triple)
        for triple in triples
    )


def latest(
    connection: sqlite3.Connection, keys: Sequence[tuple[bytes, str]]
) -> list[LocatedCell | None]:
    """The latest cells of these columns of rows, up to a full page. Raises DataDamaged."""
    sql = (
        f"SELECT position, {CELL} FROM cell"  # noqa: S608
        " WHERE row_key = ? AND column_name = ? ORDER BY ref_key DESC LIMIT 1"
    )
    return _page(
        _first_sure(connection, connection.execute(sql, key), behind_latest(*key)) for key in keys
    )


def row(
    connection: sqlite3.Connection, row_keys: Sequence[bytes], after_column: str
) -> list[list[LocatedCell]]:
    """The latest cell of each column of these rows, up to a full page; of the first row behind
    ``after_column``. Raises DataDamaged."""
    # With max() as the only aggregate SQLite takes the other columns from the row that holds the
    # maximum.
    sql = (
        f"SELECT position, {CELL}, max(ref_key) FROM cell"  # noqa: S608
        " WHERE row_key = ? AND column_name > ? GROUP BY column_name ORDER BY column_name"
    )
    rows: list[list[LocatedCell]] = []
    page = Page()
    for row_key in row_keys:
        refuse_hidden_of_row(connection, row_key)
        cursor = connection.execute(sql, (row_key, "" if rows else after_column))
        rows.append([])
        for found in cursor:
            rows[-1].append(_located(found[:-1]))
            page.take([rows[-1][-1].cell.body])
            if page.is_full:
                cursor.close()
                return rows
    return rows


def row_cells(
    connection: sqlite3.Connection, shard: int, row_key: bytes, after: int, limit: int
) -> list[StoredCell]:
    """The cells of a row in the order of their ids, from behind the id ``after`` on. Raises
    DataDamaged."""
    # The plus keeps SQLite from walking through the shard's positions: the row's own cells are
    # found by its key.
    sql = f"SELECT {CELL} FROM cell WHERE row_key = ? AND +position > ? ORDER BY position LIMIT ?"  # noqa: S608
    refuse_hidden_of_row(connection, row_key)
    return stored_cells(
        shard,
        connection.execute(sql, (row_key, position_of(shard, 0) + after, limit)).fetchall(),
    )


def find_indexed(connection: sqlite3.Connection, triple: Triple) -> LocatedCell | None:
    """The cell that the index of keys names, if it names one. Raises DataDamaged."""
    sql = f"SELECT position, {CELL} FROM cell WHERE row_key = ? AND column_name = ? AND ref_key = ?"  # noqa: S608
    return _first(connection.execute(sql, triple))


def _page(found: Iterable[LocatedCell | None]) -> list[LocatedCell | None]:
    """The first of them, up to the one with which a page is full."""
    results: list[LocatedCell | None] = []
    page = Page()
    for each in found:
        results.append(each)
        if each is not None:
            page.take([each.cell.body])
            if page.is_full:
                break
    return results


def _first_sure(
    connection: sqlite3.Connection, rows: Iterator[tuple[Any, ...]], searched: Key
) -> LocatedCell | None:
    """The first cell, where the search that ended at ``searched`` hides none. Raises
    DataDamaged."""
    found = _first(rows)
    refuse_hidden(connection, searched)
    return found


def _first(rows: Iterator[tuple[Any, ...]]) -> LocatedCell | None:
    row = next(rows, None)
    return _located(row) if row else None


def _located(row: tuple[Any, ...]) -> LocatedCell:
    shard = row[0] >> ADDED_ID_BITS
    return LocatedCell(shard, stored_cell(shard, row[1:]))
