"""Rows of a shard's table of cells on a MySQL server, as they are written and read: each with its
checksum. Damage is an error and never another cell.

A cell from before there were checksums has none (NULL) until a scrub adds it, its row is erased, or
its shard is moved.

Scans read rows framed: the server joins the fields of a cell, and all cells of a long scan, into
one value, which is taken apart here. That is four times as fast as fetching rows through a
pure-Python driver, and keeps the driver the one that installs everywhere. The bytes that the
checksum covers are one piece of a frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Final

from crc32c import crc32c
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

ROWS_MAX: Final = 200
"""Cells up to which a frame per row is quicker than all joined, which costs the server some half a
millisecond before the first."""

_ERASE_ROWS: Final = 500

_HEAD: Final = struct.Struct(">Qqqq16s")
_NO_CRC: Final = 1 << 40

_NAME_AT: Final = _HEAD.size - 8
"""Where the column's name begins in the bytes that are summed."""

_added_id = itemgetter(0)


def _big_endian(expression: str) -> str:
    return f"UNHEX(LPAD(HEX({expression}), 16, '0'))"


_LENGTHS: Final = (
    "LENGTH(body) << 41 | ISNULL(crc) << 40 | LENGTH(column_name) << 32 | IFNULL(crc, 0)"
)
"""One number for the fields that the checksum does not cover: a body is shorter than 8 MiB, a
column's name than 256 bytes."""

FRAMED: Final = (
    f"CONCAT({_big_endian(_LENGTHS)}, {_big_endian('added_id')}, {_big_endian('ref_key')},"
    f" {_big_endian(MICROSECONDS.format('created_at'))}, row_key, column_name, body)"
)

SMALL_FRAMED: Final = f"IF(LENGTH(body) > {32 << 10}, NULL, {FRAMED})"
"""The same, and NULL for a large body: thousands of rows of a few hundred kilobytes must not be
fetched at once."""


# --- writing --------------------------------------------------------------------------------------


def row_literal(cell: StoredCell) -> str:
    """The row of a cell, for an INSERT of ``INSERT_COLUMNS``."""
    added_id, row_key, column, ref_key, at_us, body = cell
    return f"({added_id},X'{row_key.hex()}',X'{column.encode().hex()}',{ref_key},X'{body.hex()}',{sql_moment(at_us)},{cell_checksum(*cell)})"  # noqa: E501


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
    raise _damaged(shard, row[0])


def _unchecked_cell(row: Sequence[Any]) -> StoredCell:
    added_id, row_key, name, ref_key, at_us, body, *_ = row
    return StoredCell(int(added_id), row_key, name.decode(), int(ref_key), int(at_us), body)


def plain_cells(connection: Connection[Any], shard: int, table: str, rest: str) -> list[StoredCell]:
    """The cells of a table that the rest of the statement names, as rows. Raises DataDamaged."""
    return [
        stored_cell(shard, row) for row in query(connection, f"SELECT {CELL} FROM {table} {rest}")
    ]


def read_cells(
    connection: Connection[Any], shard: int, table: str, location: int, limit: int
) -> list[StoredCell]:
    """The cells from a location on, in order: of many (``ROWS_MAX``) those of the next ``limit``
    ids, where there are any. Raises DataDamaged."""
    rest = from_location(location, limit)
    if limit <= ROWS_MAX:
        frames = [
            frame for (frame,) in query(connection, f"SELECT {SMALL_FRAMED} FROM {table} {rest}")
        ]
        return unframe(
            shard, frames, lambda: cells_within(connection, shard, table, location, limit)
        )
    cells = of_joined(shard, *joined(connection, table, location, limit))
    # None where no id of that range is there as well: plain rows, then.
    return cells or cells_within(connection, shard, table, location, limit)


def joined(connection: Connection[Any], table: str, location: int, limit: int) -> tuple[int, bytes]:
    """How many cells have one of the next ``limit`` ids, and their frames, joined; cut at the
    server's limit of one value."""
    # Over a range of ids, for a derived table with a LIMIT is written to disk first.
    begin = min(location, ADDED_ID_MAX)
    sql = (
        f"SELECT COUNT(*), GROUP_CONCAT({FRAMED} SEPARATOR '') FROM {table} WHERE added_id >="
        f" {begin} AND added_id < {begin + limit}"
    )
    [(count, frames)] = query(connection, sql)
    return int(count), frames or b""


def of_joined(shard: int, count: int, frames: bytes) -> list[StoredCell] | None:
    """The cells of an answer of :func:`joined`; None where it was cut: rows of tens of kilobytes
    are. Raises DataDamaged."""
    cells = _unframe(shard, frames)
    return cells if len(cells) == count else None


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


def unframe(
    shard: int, frames: Sequence[bytes | None], plain: Callable[[], list[StoredCell]]
) -> list[StoredCell]:
    """The cells of one frame a row, in the order of their ids. ``plain`` reads them as rows, where
    one has a value that makes no frame. Raises DataDamaged."""
    whole = [frame for frame in frames if frame is not None]
    return _unframe(shard, b"".join(whole)) if len(whole) == len(frames) else plain()


def _unframe(shard: int, frames: bytes) -> list[StoredCell]:
    """The whole cells in a framed answer, in the order of their ids; a cut last one is left out.
    Raises DataDamaged. Some 0.85 µs a cell, 0.25 of it for the checksum; one for many frames would
    cost more: to combine those that they have takes longer than a call of C for each."""
    cells: list[StoredCell] = []
    append, unpack, head_bytes, new = cells.append, _HEAD.unpack_from, _HEAD.size, tuple.__new__
    names: dict[bytes, str] = {}  # a log has few of them, again and again
    position, end, last, in_order = 0, len(frames), -1, True
    while position + head_bytes <= end:
        lengths, added_id, ref_key, created_at_us, row_key = unpack(frames, position)
        body_at = _NAME_AT + (lengths >> 32 & 0xFF)
        start = position + 8
        position = start + body_at + (lengths >> 41)
        if position > end:
            break
        summed = frames[start:position]
        if crc32c(summed) != lengths & 0xFFFF_FFFF and not lengths & _NO_CRC:
            raise _damaged(shard, added_id)
        name = summed[_NAME_AT:body_at]
        try:
            column_name = names.get(name) or names.setdefault(name, name.decode())
        except UnicodeDecodeError:
            raise _damaged(shard, added_id) from None
        if added_id <= last:
            in_order = False
        last = added_id
        append(
            new(
                StoredCell,
                (added_id, row_key, column_name, ref_key, created_at_us, summed[body_at:]),
            )
        )
    if not in_order:  # the server joins rows in any order it likes
        cells.sort(key=_added_id)
    if cells and cells[-1].added_id > ADDED_ID_MAX:
        raise DataDamaged(f"a scan of shard {shard} has frames that do not hold added_ids")
    return cells


def _damaged(shard: int, added_id: object) -> DataDamaged:
    return DataDamaged(
        f"the cell at added_id {added_id} of shard {shard} is damaged: it does not match its"
        f" checksum. {CURE}"
    )
