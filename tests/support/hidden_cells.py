"""Damage that hides cells from searches by key and from nothing else: a pointer in the index of
keys leads to another page, whose entries are all in good order."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

INTERIOR = 0x02
HEAD_BYTES = 12


def mislead_keys(path: Path) -> None:
    """Makes one pointer of the index's root lead to the page before the right one. The store must
    be closed, and have so many cells that the index has pages below its root."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [(size,)] = connection.execute("PRAGMA page_size")
        sql = "SELECT rootpage FROM sqlite_schema WHERE name = 'sqlite_autoindex_cell_1'"
        [(root,)] = connection.execute(sql)
    data, at = bytearray(path.read_bytes()), (root - 1) * size
    assert data[at] == INTERIOR, "the index has one page: more cells are needed"
    pointers = [
        at + int.from_bytes(data[entry : entry + 2])
        for entry in range(at + HEAD_BYTES, at + HEAD_BYTES + 4, 2)
    ]
    before, right = pointers
    data[right : right + 4] = data[before : before + 4]
    path.write_bytes(data)
