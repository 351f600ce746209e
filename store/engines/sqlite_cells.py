"""Rows of the table of cells, as they are written and read: each with its checksum, a log without gaps. Damage is an error and never a shorter answer.

A cell from before there were checksums has none (NULL) until a scrub adds it, or its row is erased.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

from store.body_codec import ERASED_BODY
from store.cell_checksum import cell_checksum
from store.cells import RESTORED_COLUMN, StoredCell
from store.errors import DataDamaged
from store.limits import ADDED_ID_MAX

ADDED_ID_BITS: Final = 47

_KEY: Final = f"position & {ADDED_ID_MAX}, row_key, column_name, ref_key, created_at_us"

CELL: Final = f"{_KEY}, body, crc"
"""What :func:`stored_cell` takes, of a SELECT."""

INSERT_CELL: Final = "INSERT INTO cell (position, row_key, column_name, ref_key, created_at_us, body, crc) VALUES (?, ?, ?, ?, ?, ?, ?)"

_CURE: Final = "Restore it from a backup; the file, or the disk below it, is damaged"

_NO_CELL: Final = (struct.error, TypeError, AttributeError)
"""What a checksum of values raises that no cell has: damage may turn any value of a row into one of another type."""


def position_of(shard: int, added_id: int) -> int:
    """Where a cell lies in the file: the rowid of its row."""
    return shard << ADDED_ID_BITS | min(added_id, ADDED_ID_MAX)


def row_of(shard: int, cell: StoredCell) -> tuple[object, ...]:
    """The row of a cell, for ``INSERT_CELL``."""
    return position_of(shard, cell.added_id), *cell[1:], cell_checksum(*cell)


def stored_cell(shard: int, row: tuple[Any, ...]) -> StoredCell:
    """The cell of a row. Raises DataDamaged, with its place, when it is not the one that was written."""
    try:
        if row[6] is None or cell_checksum(*row[:6]) == row[6]:
            return StoredCell._make(row[:6])
    except _NO_CELL:
        pass
    raise DataDamaged(f"the cell at added_id {row[0]} of shard {shard} is damaged: it is not what its checksum says. {_CURE}")


def stored_cells(shard: int, rows: Sequence[tuple[Any, ...]]) -> list[StoredCell]:
    """:func:`stored_cell` for many, in less time."""
    try:
        cells = [StoredCell(a, k, n, r, t, b) for a, k, n, r, t, b, crc in rows if crc is None or cell_checksum(a, k, n, r, t, b) == crc]
    except _NO_CELL:
        cells = []
    return cells if len(cells) == len(rows) else [stored_cell(shard, row) for row in rows]


def has_gap(location: int, cells: Sequence[StoredCell]) -> bool:
    """Whether the cells of a scan, in order, are not those from ``location`` on, one after the other."""
    return bool(cells) and (cells[0].added_id != location or cells[-1].added_id != location + len(cells) - 1)


def refuse_gap(shard: int, location: int, cells: Sequence[StoredCell], end: int) -> None:
    """Raises DataDamaged unless every id from ``location`` up to ``end`` has a cell, or was left out by a restore: then the next cell says so (E23)."""
    expected = location
    for cell in cells:
        if cell.added_id != expected and cell.column_name != RESTORED_COLUMN:
            raise DataDamaged(f"shard {shard} has no cells from added_id {expected} to {cell.added_id - 1}: they are lost. {_CURE}")
        expected = cell.added_id + 1
    if expected < end:
        raise DataDamaged(f"shard {shard} has no cells from added_id {expected} to {end - 1}: they are lost. {_CURE}")


def counter_of(connection: sqlite3.Connection, shard: int, columns: str) -> tuple[int, ...]:
    """Columns of a shard's counter. Raises DataDamaged when it is lost, or its values are no numbers."""
    row = connection.execute(f"SELECT {columns} FROM shard_counter WHERE shard = ?", (shard,)).fetchone()  # noqa: S608
    if row is None or not all(type(value) is int for value in row):
        raise DataDamaged(f"the counter of shard {shard} is lost or damaged. {_CURE}")
    return tuple(row)


def erase_bodies(connection: sqlite3.Connection, where: str, given: Iterable[Sequence[object]] = ((),)) -> None:
    """Takes the bodies of the cells away that ``where`` chooses, with each of the values given."""
    connection.create_function("cell_checksum", 6, cell_checksum, deterministic=True)
    erased = f"body = x'{ERASED_BODY.hex()}', crc = cell_checksum({_KEY}, x'{ERASED_BODY.hex()}')"
    connection.executemany(f"UPDATE cell SET {erased} WHERE {where}", given)  # noqa: S608


def add_checksums(connection: sqlite3.Connection) -> None:
    """Gives every cell a checksum that has none."""
    connection.create_function("cell_checksum", 6, cell_checksum, deterministic=True)
    connection.execute(f"UPDATE cell SET crc = cell_checksum({_KEY}, body) WHERE crc IS NULL")  # noqa: S608
