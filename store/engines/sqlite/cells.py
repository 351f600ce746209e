"""Rows of the table of cells, as they are written and read: each with its checksum, a log without
gaps. Damage is an error and never a shorter answer.

A cell from before there were checksums has none (NULL) until a scrub adds it, or its row is erased.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

from crc32c import crc32c

from cellfeed.store.cells.body_codec import ERASED_BODY, decode_body
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.checksum import cell_checksum, pack_key
from cellfeed.store.errors import DataDamaged
from cellfeed.store.limits import ADDED_ID_MAX

ADDED_ID_BITS: Final = 47

_KEY: Final = f"position & {ADDED_ID_MAX}, row_key, column_name, ref_key, created_at_us"

CELL: Final = f"{_KEY}, body, crc"
"""Columns of a SELECT for :func:`stored_cell`."""

INSERT_CELL: Final = (
    "INSERT INTO cell (position, row_key, column_name, ref_key, created_at_us, body, crc) VALUES"
    " (?, ?, ?, ?, ?, ?, ?)"
)

CURE: Final = "Restore it from a backup; the file, or the disk below it, is damaged"

_new_tuple: Final = tuple.__new__

_NO_CELL: Final = (struct.error, TypeError, AttributeError)
"""Errors of a checksum of values that no cell has: damage may turn any value of a row into one of
another type."""


def position_of(shard: int, added_id: int) -> int:
    """Where a cell lies in the file: the rowid of its row."""
    return shard << ADDED_ID_BITS | min(added_id, ADDED_ID_MAX)


def row_of(shard: int, cell: StoredCell) -> tuple[object, ...]:
    """The row of a cell, for ``INSERT_CELL``."""
    return position_of(shard, cell.added_id), *cell[1:], cell_checksum(*cell)


def stored_cell(shard: int, row: tuple[Any, ...]) -> StoredCell:
    """The cell of a row. Raises DataDamaged, with its place, when it is not the one that was
    written."""
    try:
        if cell_checksum(*row[:6]) == row[6] or row[6] is None:
            return StoredCell._make(row[:6])
    except _NO_CELL:
        pass
    raise DataDamaged(
        f"the cell at added_id {row[0]} of shard {shard} is damaged: it does not match its"
        f" checksum. {CURE}"
    )


def stored_cells(shard: int, rows: Sequence[tuple[Any, ...]]) -> list[StoredCell]:
    """:func:`stored_cell` for many, in half the time where all have a checksum: it is written out,
    and the tuples are made without a call of Python's."""
    try:
        cells = [
            _new_tuple(StoredCell, (added_id, row_key, column, ref_key, at_us, body))
            for added_id, row_key, column, ref_key, at_us, body, crc in rows
            if crc32c(pack_key(added_id, ref_key, at_us, row_key) + column.encode() + body) == crc
        ]
    except _NO_CELL:
        cells = []
    return cells if len(cells) == len(rows) else [stored_cell(shard, row) for row in rows]


def counter_of(connection: sqlite3.Connection, shard: int, columns: str) -> tuple[int, ...]:
    """Columns of a shard's counter. Raises DataDamaged when it is lost, or its values are no
    numbers."""
    row = connection.execute(
        f"SELECT {columns} FROM shard_counter WHERE shard = ?",  # noqa: S608
        (shard,),
    ).fetchone()
    if row is None or not all(type(value) is int for value in row):
        raise DataDamaged(f"the counter of shard {shard} is lost or damaged. {CURE}")
    return tuple(row)


def erase_bodies(
    connection: sqlite3.Connection, where: str, given: Iterable[Sequence[object]] = ((),)
) -> None:
    """Takes the bodies of the cells away that ``where`` chooses, with each of the values given."""
    connection.create_function("cell_checksum", 6, cell_checksum, deterministic=True)
    erased = f"body = x'{ERASED_BODY.hex()}', crc = cell_checksum({_KEY}, x'{ERASED_BODY.hex()}')"
    connection.executemany(f"UPDATE cell SET {erased} WHERE {where}", given)  # noqa: S608


def replace_body(connection: sqlite3.Connection, shard: int, cell: StoredCell, body: bytes) -> bool:
    """Stores another encoding of a cell's body; False when the cell is not there any more as it
    was. Raises DataDamaged when it does not read back."""
    changed = cell._replace(body=body)
    values = (body, cell_checksum(*changed), position_of(shard, cell.added_id), cell.body)
    if (
        connection.execute(
            "UPDATE cell SET body = ?, crc = ? WHERE position = ? AND body = ?", values
        ).rowcount
        != 1
    ):
        return False
    row = connection.execute(
        f"SELECT {CELL} FROM cell WHERE position = ?",  # noqa: S608
        (position_of(shard, cell.added_id),),
    ).fetchone()
    if stored_cell(shard, row) != changed:
        raise DataDamaged(
            f"the cell at added_id {cell.added_id} of shard {shard} does not read back as it was"
            f" rewritten. {CURE}"
        )
    return True


def add_checksums(connection: sqlite3.Connection) -> None:
    """Gives every cell a checksum that has none and whose body decodes: its frame is all that
    proves it. A damaged one is left as it is."""
    connection.create_function("proved_checksum", 6, _proved_checksum, deterministic=True)
    connection.execute(f"UPDATE cell SET crc = proved_checksum({_KEY}, body) WHERE crc IS NULL")  # noqa: S608


def _proved_checksum(
    added_id: int, row_key: bytes, column_name: str, ref_key: int, created_at_us: int, body: bytes
) -> int | None:
    try:
        decode_body(body)
        return cell_checksum(added_id, row_key, column_name, ref_key, created_at_us, body)
    except (DataDamaged, *_NO_CELL):
        return None
