"""Whether the index of keys hides a cell: a search that ends beside an entry which is not its
row's.

One flipped bit in an entry of the index makes it another key at the old place. A search for the
right key then ends beside it and finds nothing, or an older cell. So the entries before and behind
the place where a search ends are compared with their rows. In a search tree with whole pages, a
search turns wrong only at a wrong entry, and ends next to that entry. A wrong pointer to another
page is not found like this: `cellfeed check` finds it.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from cellfeed.store.engines.sqlite.cells import ADDED_ID_BITS, CURE
from cellfeed.store.errors import DataDamaged
from cellfeed.store.limits import ADDED_ID_MAX

Key = tuple[bytes, str | bytes, int]
"""Row key, column name and ref key, or a bound of such: SQLite orders bytes behind every text."""

_REF_MAX: Final = 2**63 - 1

_KEYS: Final = (
    "SELECT position, row_key, column_name, ref_key FROM cell WHERE (row_key, column_name, ref_key)"
)
_BEFORE: Final = (
    f"{_KEYS} < (?, ?, ?) ORDER BY row_key DESC, column_name DESC, ref_key DESC LIMIT 1"
)
_BEHIND: Final = f"{_KEYS} > (?, ?, ?) ORDER BY row_key, column_name, ref_key LIMIT 1"


def refuse_hidden(connection: sqlite3.Connection, low: Key, high: Key) -> None:
    """Raises DataDamaged when the entry before ``low``, or the one behind ``high``, is not that of
    its row: a cell between them may be hidden."""
    for sql, key in ((_BEFORE, low), (_BEHIND, high)):
        entry = connection.execute(sql, key).fetchone()
        if entry is not None:
            _check(connection, *entry)


def behind_latest(row_key: bytes, column_name: str) -> Key:
    """The place behind the latest cell of a column."""
    return row_key, column_name, _REF_MAX


def around_row(row_key: bytes) -> tuple[Key, Key]:
    """The places before and behind all cells of a row."""
    return (row_key, "", -_REF_MAX - 1), (row_key, b"", 0)


def _check(connection: sqlite3.Connection, position: int, *key: Any) -> None:
    row = connection.execute(
        "SELECT row_key, column_name, ref_key FROM cell NOT INDEXED WHERE position = ?", (position,)
    ).fetchone()
    if row != key:
        place = (
            f"added_id {position & ADDED_ID_MAX} of shard {position >> ADDED_ID_BITS}"
            if isinstance(position, int)
            else "a row that is not there"
        )
        raise DataDamaged(
            f"the index of keys is damaged: its entry for {place} is not the key of that cell, and"
            f" may hide another one. {CURE}"
        )
