"""Scans of a shard's log on one server, framed: the server joins the fields of a cell, and all cells of a long scan, into one value of length-prefixed fields,
which is taken apart here. That is four times as fast as fetching rows through a pure-Python driver, and keeps the driver the one that installs everywhere.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

from pymysql.connections import Connection

from store.cells import StoredCell
from store.engines.contract import LogRange
from store.engines.log_start import check_scan
from store.engines.mysql_connections import MySqlServer, query
from store.errors import DataDamaged, Trimmed
from store.limits import ADDED_ID_MAX, SCAN_BYTES_MAX

_SCAN_STEP: Final = 2_000
"""Rows in one framed answer: its 64 MB (``group_concat_max_len``) hold them at 32 kB each; larger ones are fetched row by row."""

_ROWS_MAX: Final = 200
"""Cells up to which a frame per row is quicker than all joined, which costs the server some half a millisecond before the first."""

_FRAME: Final = struct.Struct(">Q16sqQHI")
_CELL: Final = "added_id, row_key, column_name, ref_key, CAST(UNIX_TIMESTAMP(created_at) * 1000000 AS UNSIGNED), body"
MICROSECONDS: Final = "CAST(UNIX_TIMESTAMP({0}) * 1000000 AS UNSIGNED)"


def _big_endian(expression: str, size: int) -> str:
    return f"UNHEX(LPAD(HEX({expression}), {2 * size}, '0'))"


_FRAMED: Final = (
    f"CONCAT({_big_endian('added_id', 8)}, row_key, {_big_endian('ref_key', 8)}, {_big_endian(MICROSECONDS.format('created_at'), 8)}, "
    f"{_big_endian('LENGTH(column_name)', 2)}, {_big_endian('LENGTH(body)', 4)}, column_name, body)"
)


class MySqlLog:
    """``log_start``: reads, over a connection given, where a shard's log begins."""

    def __init__(self, server: MySqlServer, shard_database: Callable[[int], str], log_start: Callable[[Connection[Any], int], int]) -> None:
        self._server = server
        self._database = shard_database
        self._log_start = log_start

    def scan(self, shard: int, location: int, limit: int) -> list[StoredCell]:
        cells: list[StoredCell] = []
        scanned_bytes = 0
        with self._server.connection() as connection:
            while len(cells) < limit:
                begin = cells[-1].added_id + 1 if cells else location
                step = self._scan_step(connection, shard, begin, min(_SCAN_STEP, limit - len(cells)))
                try:
                    check_scan(shard, begin, step, lambda: self._log_start(connection, shard))
                except Trimmed:
                    if cells:
                        return cells  # they were there when they were read; whoever goes on behind them is told
                    raise
                for cell in step:
                    scanned_bytes += len(cell.body)
                    if scanned_bytes > SCAN_BYTES_MAX and cells:
                        return cells
                    cells.append(cell)
                if len(step) < _SCAN_STEP:
                    break
        return cells

    def scan_many(self, ranges: Sequence[LogRange]) -> list[list[StoredCell]]:
        found: dict[int, list[StoredCell]] = {}
        together: list[int] = []
        cells = 0
        for index, each in enumerate(ranges):
            if each.limit > _ROWS_MAX:
                found[index] = self.scan(*each)
                continue
            if cells + each.limit > _SCAN_STEP:
                found.update(self._scan_together(ranges, together))
                together, cells = [], 0
            together.append(index)
            cells += each.limit
        found.update(self._scan_together(ranges, together))
        return [found[index] for index in range(len(ranges))]

    def _scan_step(self, connection: Connection[Any], shard: int, location: int, limit: int) -> list[StoredCell]:
        table = f"{self._database(shard)}.cell"
        if limit <= _ROWS_MAX:
            return _unframe(b"".join([frame for (frame,) in query(connection, f"SELECT {_FRAMED} FROM {table} {_from(location, limit)}")]))
        # Over a range of ids, for a derived table with a LIMIT is written to disk first.
        end = min(location, ADDED_ID_MAX) + limit
        sql = f"SELECT COUNT(*), GROUP_CONCAT({_FRAMED} SEPARATOR '') FROM {table} WHERE added_id >= {min(location, ADDED_ID_MAX)} AND added_id < {end}"
        [(count, frames)] = query(connection, sql)
        cells = _unframe(frames or b"")
        if cells and len(cells) == int(count):
            return sorted(cells, key=_added_id)
        # The joined value was cut at its limit (rows of tens of kilobytes), or no id of that range is there: plain rows, then.
        return plain_cells(connection, table, _from(location, limit))

    def _scan_together(self, ranges: Sequence[LogRange], indexes: Sequence[int]) -> dict[int, list[StoredCell]]:
        """The ranges of these indexes in one answer, a row per cell."""
        if not indexes:
            return {}
        selects = [f"(SELECT {index}, {_FRAMED} FROM {self._database(ranges[index].shard)}.cell {_from(*ranges[index][1:])})" for index in indexes]
        frames: dict[int, list[bytes]] = {index: [] for index in indexes}
        with self._server.connection() as connection:
            for index, frame in query(connection, " UNION ALL ".join(selects)):
                frames[int(index)].append(frame)
            cells = {index: sorted(_unframe(b"".join(found)), key=_added_id) for index, found in frames.items()}
            for index, found in cells.items():
                shard, location, limit = ranges[index]
                if limit > 0:
                    check_scan(shard, location, found, lambda shard=shard: self._log_start(connection, shard))  # type: ignore[misc]
        return {index: _within_scan_bytes(found) for index, found in cells.items()}


def plain_cells(connection: Connection[Any], table: str, rest: str) -> list[StoredCell]:
    """The cells of a table that the rest of the statement names, as rows."""
    rows = query(connection, f"SELECT {_CELL} FROM {table} {rest}")
    return [StoredCell(int(added_id), key, name.decode(), int(ref_key), int(at), body) for added_id, key, name, ref_key, at, body in rows]


_added_id = itemgetter(0)


def _from(location: int, limit: int) -> str:
    """The rest of a statement over a shard's cells: so many from a location on, in order."""
    return f"WHERE added_id >= {min(location, ADDED_ID_MAX)} ORDER BY added_id LIMIT {limit}"


def _within_scan_bytes(cells: list[StoredCell]) -> list[StoredCell]:
    """The first of them, as many as one scan may give."""
    scanned_bytes = 0
    for index, cell in enumerate(cells):
        scanned_bytes += len(cell.body)
        if scanned_bytes > SCAN_BYTES_MAX and index:
            return cells[:index]
    return cells


def _unframe(frames: bytes) -> list[StoredCell]:
    """The whole cells in a framed answer; a cut last one is left out."""
    cells: list[StoredCell] = []
    append, make, unpack, head_bytes = cells.append, StoredCell._make, _FRAME.unpack_from, _FRAME.size
    names: dict[bytes, str] = {}  # a log has few of them, again and again
    position, end = 0, len(frames)
    while position + head_bytes <= end:
        added_id, row_key, ref_key, created_at_us, name_bytes, body_bytes = unpack(frames, position)
        name_start = position + head_bytes
        body_start = name_start + name_bytes
        position = body_start + body_bytes
        if position > end:
            break
        name = frames[name_start:body_start]
        column_name = names.get(name) or names.setdefault(name, name.decode())
        append(make((added_id, row_key, column_name, ref_key, created_at_us, frames[body_start:position])))
    if max(map(_added_id, cells), default=0) > ADDED_ID_MAX:
        raise DataDamaged("a log scan's frames do not hold added_ids")
    return cells
