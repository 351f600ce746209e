"""The cells that an index of an embedded store is made of, and the check whether rows of an
answer are the latest."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from cellfeed.store.cells.cell import ERASED_COLUMN, StoredCell
from cellfeed.store.engines.contract.index_values import RowRefs, RowsBelow
from cellfeed.store.engines.contract.values import LocatedCell
from cellfeed.store.engines.sqlite.cells import (
    ADDED_ID_BITS,
    CELL,
    position_of,
    stored_cell,
    stored_cells,
)

KEYS_MAX: Final = 5000
"""Row keys in one statement: below SQLite's limit of parameters, 32,766. The more of them, the more
lie beside each other."""


_ROWS_COMPARED: Final = 500
"""Rows that one statement compares: each gives up the interpreter's lock and takes it back."""


def latest_before(
    connection: sqlite3.Connection, rows: RowsBelow, columns: Sequence[str]
) -> list[StoredCell]:
    """As :meth:`cellfeed.store.engines.contract.indexes.IndexStore.latest_before`, of one shard."""
    shard, row_keys, location, _ = rows
    below = position_of(shard, location)
    found: list[StoredCell] = []
    # Every name costs a look at the index for each row, and most shards have never seen an
    # erasure.
    [(erasures,)] = connection.execute(
        "SELECT erasures FROM shard_counter WHERE shard = ?", (shard,)
    ).fetchall()
    names = (*columns, ERASED_COLUMN) if erasures else tuple(columns)
    named = ", ".join("?" * len(names))
    for start in range(0, len(row_keys), KEYS_MAX):
        some = row_keys[start : start + KEYS_MAX]
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


def cells_between(
    connection: sqlite3.Connection, shard: int, columns: Sequence[str], location: int, end: int
) -> list[StoredCell]:
    """As :meth:`cellfeed.store.engines.contract.indexes.IndexStore.cells_between`."""
    named = ", ".join("?" * len(columns))
    sql = (
        f"SELECT {CELL} FROM cell WHERE position >= ? AND position < ? AND +column_name IN"
        f" ({named}) ORDER BY position"
    )
    bounds = position_of(shard, location), position_of(shard, end)
    return stored_cells(shard, connection.execute(sql, (*bounds, *columns)).fetchall())


def outdated(
    connection: sqlite3.Connection, rows: Sequence[RowRefs], columns: Sequence[str]
) -> set[bytes]:
    """The keys of the rows whose newest cells are others than those given."""
    found: set[bytes] = set()
    for start in range(0, len(rows), _ROWS_COMPARED):
        some = rows[start : start + _ROWS_COMPARED]
        values = [value for row_key, refs in some for value in (row_key, *refs)]
        found.update(
            row_key
            for (row_key,) in connection.execute(
                _outdated_sql(len(some), len(columns)), (*values, *columns)
            )
        )
    return found


def current(
    connection: sqlite3.Connection, row_keys: Sequence[bytes], columns: Sequence[str] | None
) -> dict[bytes, list[LocatedCell]]:
    """By row key the latest cell of each of the columns, or of all of them; in a statement for each
    ``KEYS_MAX`` rows."""
    found: dict[bytes, list[LocatedCell]] = {}
    for start in range(0, len(row_keys), KEYS_MAX):
        piece = row_keys[start : start + KEYS_MAX]
        for shard, *cell, _ in connection.execute(
            _current_sql(len(piece), columns), (*piece, *(columns or ()))
        ):
            stored = stored_cell(shard, tuple(cell))
            found.setdefault(stored.row_key, []).append(LocatedCell(shard, stored))
    return found


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
