"""Whether the index of keys hides a cell: a search that ends beside an entry which is not its
row's.

One flipped bit in an entry of the index makes it another key at the old place. A search for the
right key then ends beside it and finds nothing, or an older cell. So the entries before and behind
the place where a search ends are compared with their rows, and with the order of keys. In a search
tree with whole pages, a search turns wrong only at a wrong entry, and ends next to that entry. A
search for all cells of a row walks over many entries, and ends at the first of another row. So it
compares each of them: a wrong one in the middle ends the walk too early.

A wrong pointer to another page, or a wrong number of entries in a page, is not found like this:
`cellfeed check` finds it.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from cellfeed.store.engines.sqlite.cells import ADDED_ID_BITS, CURE
from cellfeed.store.errors import DataDamaged
from cellfeed.store.limits import ADDED_ID_MAX

Key = tuple[bytes, str, int]
"""Row key, column name and ref key. Python orders them as SQLite does: text by its code points."""

_REF_MAX: Final = 2**63 - 1

_KEYS: Final = "SELECT position, row_key, column_name, ref_key FROM cell WHERE"
_UP: Final = "ORDER BY row_key, column_name, ref_key LIMIT 1"
_DOWN: Final = "ORDER BY row_key DESC, column_name DESC, ref_key DESC LIMIT 1"

_BEFORE: Final = f"{_KEYS} (row_key, column_name, ref_key) < (?, ?, ?) {_DOWN}"
_BEFORE_IN_COLUMN: Final = f"{_KEYS} row_key = ? AND column_name = ? AND ref_key < ? {_DOWN}"
_BEHIND: Final = f"{_KEYS} (row_key, column_name, ref_key) > (?, ?, ?) {_UP}"
_BEHIND_IN_COLUMN: Final = f"{_KEYS} row_key = ? AND column_name = ? AND ref_key > ? {_UP}"
"""A comparison of triples leaves out an entry whose ref key has become NULL; one of ref keys does
not."""

_BEFORE_ROW: Final = f"{_KEYS} row_key < ? {_DOWN}"
_BEHIND_ROW: Final = f"{_KEYS} row_key > ? {_UP}"

_OTHER: Final = " OR ".join(
    f"cell.{column} IS NOT entry.{column}" for column in ("row_key", "column_name", "ref_key")
)
_WALK_END: Final = f"""
SELECT entry.position, entry.row_key, entry.column_name, entry.ref_key
FROM cell AS entry INDEXED BY sqlite_autoindex_cell_1
LEFT JOIN cell NOT INDEXED ON cell.position = entry.position
WHERE entry.row_key >= ? AND (entry.row_key IS NOT ? OR cell.position IS NULL OR {_OTHER})
ORDER BY entry.row_key, entry.column_name, entry.ref_key LIMIT 1
"""  # noqa: S608
"""The first entry from a row on that is another row's, or not that of its cell."""


def refuse_hidden(connection: sqlite3.Connection, key: Key) -> None:
    """Raises DataDamaged when the entry before a place, or the one behind it, is not that of its
    row, or not on that side: a cell between them may be hidden."""
    for in_column, anywhere, is_before in (
        (_BEFORE_IN_COLUMN, _BEFORE, True),
        (_BEHIND_IN_COLUMN, _BEHIND, False),
    ):
        entry = (
            connection.execute(in_column, key).fetchone()
            or connection.execute(anywhere, key).fetchone()
        )
        if entry is not None:
            _check(connection, *entry)
            if (entry[1:] < key) is not is_before:
                raise _damage(entry[0])


def refuse_hidden_of_row(connection: sqlite3.Connection, row_key: bytes) -> None:
    """The same for all cells of a row: raises DataDamaged when one of its entries, or the one
    beside them, is not that of its cell."""
    for sql, values in (
        (_BEFORE_ROW, (row_key,)),
        (_BEHIND_ROW, (row_key,)),
        (_WALK_END, (row_key, row_key)),
    ):
        entry = connection.execute(sql, values).fetchone()
        if entry is not None:
            _check(connection, *entry)
            if sql is not _WALK_END and (entry[1] < row_key) is not (sql is _BEFORE_ROW):
                raise _damage(entry[0])


def behind_latest(row_key: bytes, column_name: str) -> Key:
    """The place behind the latest cell of a column."""
    return row_key, column_name, _REF_MAX


def _check(connection: sqlite3.Connection, position: int, *key: Any) -> None:
    row = connection.execute(
        "SELECT row_key, column_name, ref_key FROM cell NOT INDEXED WHERE position = ?", (position,)
    ).fetchone()
    if row != key:
        raise _damage(position)


def _damage(position: int) -> DataDamaged:
    place = (
        f"added_id {position & ADDED_ID_MAX} of shard {position >> ADDED_ID_BITS}"
        if isinstance(position, int)
        else "a row that is not there"
    )
    return DataDamaged(
        f"the index of keys is damaged: its entry for {place} is not the key of that cell, or not"
        f" in its place, and may hide another one. {CURE}"
    )
