"""Rows of a shard's table of cells on a MySQL server, as they are written and read: each with its
checksum. Damage is an error and never another cell.

A cell from before there were checksums has none (NULL) until a scrub adds it, its row is erased, or
its shard is moved.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pymysql.connections import Connection

from cellfeed.store.cells.body_codec import ERASED_BODY
from cellfeed.store.cells.cell import StoredCell, moment
from cellfeed.store.cells.checksum import cell_checksum
from cellfeed.store.engines.mysql.statements import PACKET_BYTES_MAX, query
from cellfeed.store.errors import DataDamaged
from cellfeed.store.limits import ADDED_ID_MAX, SCAN_BYTES_MAX

MICROSECONDS: Final = "CAST(UNIX_TIMESTAMP({0}) * 1000000 AS UNSIGNED)"

KEY: Final = f"added_id, row_key, column_name, ref_key, {MICROSECONDS.format('created_at')}"
"""Columns of a SELECT for :func:`erase_bodies`."""

CELL: Final = f"{KEY}, body, crc"
"""Columns of a SELECT for :func:`stored_cell`."""

FOUND_KEY: Final = (
    "entry.added_id, cell.row_key, cell.column_name, cell.ref_key,"
    f" {MICROSECONDS.format('cell.created_at')}"
)
"""As ``KEY``, of a SELECT from :func:`found_by_key`."""

INSERT_COLUMNS: Final = "(added_id,row_key,column_name,ref_key,body,created_at,crc)"
"""The order of :func:`row_literal`."""

CURE: Final = (
    "Make this node a copy of another one (cellfeed cluster rejoin CLUSTER NODE --copy), or restore"
    " a backup; its disk may be failing"
)


_ERASE_ROWS: Final = 500


# --- writing --------------------------------------------------------------------------------------


def row_literal(cell: StoredCell) -> str:
    """The row of a cell, for an INSERT of ``INSERT_COLUMNS``."""
    added_id, row_key, column, ref_key, at_us, body = cell
    return (
        f"({added_id},X'{row_key.hex()}',X'{column.encode().hex()}',{ref_key},X'{body.hex()}',"
        f"{sql_moment(at_us)},{cell_checksum(*cell)})"
    )


def erase_bodies(table: str, keys: Sequence[Sequence[Any]]) -> list[str]:
    """Statements that take the bodies of these cells away, with checksums of the cells without
    them."""
    statements = []
    for start in range(0, len(keys), _ERASE_ROWS):
        cells = [_unchecked_cell((*key, ERASED_BODY)) for key in keys[start : start + _ERASE_ROWS]]
        sums = "".join(f" WHEN {cell.added_id} THEN {cell_checksum(*cell)}" for cell in cells)
        ids = ",".join(str(cell.added_id) for cell in cells)
        statements.append(
            f"UPDATE {table} SET body = X'{ERASED_BODY.hex()}', crc = CASE added_id{sums} END WHERE"
            f" added_id IN ({ids})"
        )
    return statements


def parts(values: Sequence[str]) -> Iterator[Sequence[str]]:
    """The rows of an INSERT in as many statements as fit a packet each."""
    start, part_bytes = 0, 0
    for index, value in enumerate(values):
        if part_bytes and part_bytes + len(value) > PACKET_BYTES_MAX:
            yield values[start:index]
            start, part_bytes = index, 0
        part_bytes += len(value)
    yield values[start:]


def sql_moment(created_at_us: int) -> str:
    """The SQL literal of a moment, microseconds since 1970 UTC."""
    return f"'{moment(created_at_us).strftime('%Y-%m-%d %H:%M:%S.%f')}'"


# --- reading --------------------------------------------------------------------------------------


def found_by_key(table: str) -> str:
    """The tables of a SELECT by key: ``entry``, the index of keys alone, and its ``cell``. A
    condition on ``entry`` finds a cell whose own key is damaged, too; then its checksum tells. A
    condition on the cell would leave it out, as if it were not there."""
    return (
        f"{table} AS entry FORCE INDEX (triple) LEFT JOIN {table} AS cell ON cell.added_id ="
        " entry.added_id"
    )


def stored_cell(shard: int, row: Sequence[Any]) -> StoredCell:
    """The cell of a row. Raises DataDamaged, with its place, when it is not the one that was
    written."""
    try:
        cell = _unchecked_cell(row)
        if row[6] is None or cell_checksum(*cell) == int(row[6]):
            return cell
    except (
        AttributeError,
        struct.error,
        TypeError,
        ValueError,
    ):  # values that no cell has: a name that is no text, a moment that is none, no row at all
        pass
    raise damaged(shard, row[0])


def _unchecked_cell(row: Sequence[Any]) -> StoredCell:
    added_id, row_key, name, ref_key, at_us, body, *_ = row
    return StoredCell(int(added_id), row_key, name.decode(), int(ref_key), int(at_us), body)


def plain_cells(connection: Connection[Any], shard: int, table: str, rest: str) -> list[StoredCell]:
    """The cells of a table that the rest of the statement names, as rows. Raises DataDamaged."""
    return [
        stored_cell(shard, row) for row in query(connection, f"SELECT {CELL} FROM {table} {rest}")
    ]


def cells_within(
    connection: Connection[Any], shard: int, table: str, location: int, limit: int
) -> list[StoredCell]:
    """The cells from a location on, as rows: as many as come to ``SCAN_BYTES_MAX`` stored, and one
    more. Raises DataDamaged."""
    count = stored_bytes = 0
    for (size,) in query(
        connection, f"SELECT LENGTH(body) FROM {table} {from_location(location, limit)}"
    ):
        count, stored_bytes = count + 1, stored_bytes + int(size or 0)
        if stored_bytes > SCAN_BYTES_MAX:
            break
    return plain_cells(connection, shard, table, from_location(location, count)) if count else []


def from_location(location: int, limit: int) -> str:
    """The rest of a statement over a shard's cells: so many from a location on, in order."""
    return f"WHERE added_id >= {min(location, ADDED_ID_MAX)} ORDER BY added_id LIMIT {limit}"


def damaged(shard: int, added_id: object) -> DataDamaged:
    return DataDamaged(
        f"the cell at added_id {added_id} of shard {shard} is damaged: it does not match its"
        f" checksum. {CURE}"
    )
