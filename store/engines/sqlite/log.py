"""Reads of a shard's log: by location and by time, and which cells have newer ones."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.contract.log_start import check_scan
from cellfeed.store.engines.contract.read_bounds import decoded, within_scan
from cellfeed.store.engines.contract.scan_gaps import has_gap, refuse_gap
from cellfeed.store.engines.contract.values import LogRange
from cellfeed.store.engines.sqlite.cells import CELL, CURE, counter_of, position_of, stored_cells
from cellfeed.store.engines.sqlite.files import SqliteFile
from cellfeed.store.limits import ADDED_ID_MAX, SCAN_BYTES_MAX, SCAN_DECODED_BYTES_MAX

_SCAN_STEP: Final = 500
_BODY: Final = 5
"""Where the body stands in the row of a ``CELL``."""


def scan(connection: sqlite3.Connection, shard: int, location: int, limit: int) -> list[StoredCell]:
    """The cells from a location on. Outside a transaction: it begins one where it needs one.
    Raises Trimmed, InvalidLocation, DataDamaged."""
    cells, ended = _scanned(connection, shard, location, limit)
    if not has_gap(location, cells) and not ended:
        return cells
    start, end = counter_of(connection, shard, "log_start, next_added_id")
    check_scan(shard, location, cells, lambda: start)
    if has_gap(location, cells) or (ended and location + len(cells) < end):
        # Cells may have been put, or trimmed, between these statements: the same again, of one
        # moment.
        connection.execute("BEGIN")
        start, end = counter_of(connection, shard, "log_start, next_added_id")
        cells, ended = _scanned(connection, shard, location, limit)
        check_scan(shard, location, cells, lambda: start)
        refuse_gap(shard, location, cells, end if ended else location, CURE)
    return cells


def scan_many(file: SqliteFile, ranges: Sequence[LogRange]) -> list[list[StoredCell]]:
    """:func:`scan` of each range, each of its own moment."""
    found: list[list[StoredCell]] = []
    decoded_bytes = 0
    for shard, location, limit in ranges:
        is_full = decoded_bytes >= SCAN_DECODED_BYTES_MAX
        with file.read() as connection:
            found.append(scan(connection, shard, location, min(limit, 1) if is_full else limit))
        decoded_bytes += decoded(found[-1])
    return found


def superseded(
    connection: sqlite3.Connection,
    shard: int,
    start: int,
    end: int,
    log_start: int,
    watermark: int,
) -> set[int]:
    """The ids from ``start`` to ``end`` whose cells have a newer one in their column of their
    row."""
    first = position_of(shard, 0)
    sql = (
        "SELECT older.position FROM cell AS older WHERE older.position >= ? AND older.position"
        " < ? AND EXISTS ( SELECT 1 FROM cell AS newer WHERE newer.row_key = older.row_key AND"
        " newer.column_name = older.column_name AND newer.ref_key > older.ref_key AND"
        " newer.position >= ? AND newer.position < ?)"
    )
    bounds = (first + start, first + end, first + log_start, first + watermark)
    return {position - first for (position,) in connection.execute(sql, bounds)}


def locate(connection: sqlite3.Connection, shard: int, created_at_us: int) -> int:
    """The first id whose cell was created at that moment or later. In a snapshot."""
    low, high = counter_of(connection, shard, "log_start, next_added_id")
    # created_at never goes back within a shard (E4), so a binary search by id finds the moment
    # without an index on it.
    while low < high:
        middle = (low + high) // 2
        sql = (
            "SELECT position, created_at_us FROM cell WHERE position BETWEEN ? AND ? ORDER BY"
            " position LIMIT 1"
        )
        row = connection.execute(
            sql, (position_of(shard, middle), position_of(shard, high - 1))
        ).fetchone()
        if row is None or row[1] >= created_at_us:
            high = middle
        else:
            low = (row[0] & ADDED_ID_MAX) + 1
    return low


def _scanned(
    connection: sqlite3.Connection, shard: int, location: int, limit: int
) -> tuple[list[StoredCell], bool]:
    """The first cells from a location on, as many as one scan may give; and whether the log ends
    there."""
    sql = f"SELECT {CELL} FROM cell WHERE position BETWEEN ? AND ? ORDER BY position LIMIT ?"  # noqa: S608
    cursor = connection.execute(
        sql, (position_of(shard, location), position_of(shard, ADDED_ID_MAX), limit)
    )
    cells: list[StoredCell] = []
    scanned_bytes = 0
    while rows := stored_cells(shard, _fetched(cursor)):
        step_bytes = sum([len(row.body) for row in rows])
        if scanned_bytes + step_bytes <= SCAN_BYTES_MAX:
            scanned_bytes += step_bytes
            cells += rows
            continue
        for row in rows:
            scanned_bytes += len(row.body)
            if scanned_bytes > SCAN_BYTES_MAX and cells:
                cursor.close()
                return within_scan(cells), False
            cells.append(row)
    within = within_scan(cells)
    return within, len(within) == len(cells) < limit


def _fetched(cursor: sqlite3.Cursor) -> list[tuple[Any, ...]]:
    """The next rows: ``_SCAN_STEP`` of them, or as many as come to the bytes of a scan."""
    rows: list[tuple[Any, ...]] = []
    stored_bytes = 0
    for row in cursor:
        rows.append(row)
        body = row[_BODY]
        stored_bytes += (
            len(body) if type(body) is bytes else 0
        )  # damage turns a value into one of another type, and is reported later
        if len(rows) == _SCAN_STEP or stored_bytes > SCAN_BYTES_MAX:
            break
    return rows
