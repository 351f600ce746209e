"""Cells of a shard's table as framed answers of the server.

Scans read rows framed: the server joins the fields of a cell, and all cells of a long scan, into
one value, which is taken apart here. That is four times as fast as fetching rows through a
pure-Python driver, and keeps the driver the one that installs everywhere. The bytes that the
checksum covers are one piece of a frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

from crc32c import crc32c
from pymysql.connections import Connection

from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.mysql.cells import MICROSECONDS, cells_within, damaged, from_location
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import DataDamaged
from cellfeed.store.limits import ADDED_ID_MAX

ROWS_MAX: Final = 200
"""Cells up to which a frame per row is quicker than all joined, which costs the server some half a
millisecond before the first."""

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
            raise damaged(shard, added_id)
        name = summed[_NAME_AT:body_at]
        try:
            column_name = names.get(name) or names.setdefault(name, name.decode())
        except UnicodeDecodeError:
            raise damaged(shard, added_id) from None
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
