"""The log of one shard in an embedded store's file, as a check reads it, and its counter."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.contract.findings import Findings, OnCells
from cellfeed.store.engines.contract.log_check import ROWS_CELLS, check_log
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.engines.sqlite.cells import CELL, position_of, stored_cells
from cellfeed.store.engines.sqlite.connect import connect, sqlite_error
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE
from cellfeed.store.errors import DataDamaged
from cellfeed.store.limits import ADDED_ID_MAX, SCAN_BYTES_MAX

_crc = itemgetter(6)


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection in a transaction of one moment. Raises DataDamaged, StorageUnavailable."""
    with closing(connect(path)) as connection:
        try:
            connection.execute("PRAGMA query_only=ON")
            connection.execute("BEGIN")
            yield connection
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise sqlite_error(path, "", error) from error


def head_of(connection: sqlite3.Connection, path: Path, shard: int, into: Findings) -> Head | None:
    """The ends of a shard's log by its counter; None, and a finding, where it is lost or
    damaged."""
    row = connection.execute(
        "SELECT log_start, next_added_id, next_added_id, leader_epoch, last_created_at_us, erasures"
        " FROM shard_counter WHERE shard = ?",
        (shard,),
    ).fetchone()
    if (
        row is None
        or not all(type(value) is int for value in row)
        or not 0 <= row[0] <= row[1] <= ADDED_ID_MAX
    ):
        into.add(
            "counter", CELLS_FILE, f"the counter of shard {shard} is lost or damaged: {row}", shard
        )
        return None
    return Head(*row)


def check_ids(
    connection: sqlite3.Connection,
    path: Path,
    shard: int,
    shards: int,
    head: Head,
    into: Findings,
    on_cells: OnCells,
) -> None:
    """Looks at the cells from ``head.log_start`` up to ``head.next_added_id``."""
    columns = {name for (name,) in connection.execute("SELECT name FROM column_seen")}
    log = _FileLog(connection, path, shard)
    check_log(CELLS_FILE, shard, shards, log, head, columns, into, on_cells)


def check_outside(connection: sqlite3.Connection, shard: int, head: Head, into: Findings) -> None:
    """Finds cells that lie outside of the shard's log."""
    for first, stop, what in (
        (0, head.log_start, "below the log's start"),
        (head.next_added_id, ADDED_ID_MAX, "at or above the next id"),
    ):
        between = position_of(shard, first), position_of(shard, stop)
        sql = (
            "SELECT count(*), min(position), max(position) FROM cell WHERE position >= ? AND"
            " position < ?"
        )
        [(count, least, most)] = connection.execute(sql, between).fetchall()
        if count:
            ids = range(least & ADDED_ID_MAX, (most & ADDED_ID_MAX) + 1)
            into.add(
                "counter",
                CELLS_FILE,
                f"shard {shard} has {count} cells {what}, from {ids.start} to {ids.stop - 1}",
                shard,
                ids,
            )


class _FileLog:
    """:class:`cellfeed.store.engines.contract.log_check.LogStorage`."""

    def __init__(self, connection: sqlite3.Connection, path: Path, shard: int) -> None:
        self._connection, self._path, self._shard = connection, path, shard

    def cells(self, ids: range) -> list[StoredCell]:
        rows, found_bytes, asked = list[tuple[Any, ...]](), 0, self._rows(ids)
        while found_bytes <= SCAN_BYTES_MAX and (more := list(islice(asked, ROWS_CELLS))):
            if None in map(_crc, more):
                raise DataDamaged(
                    "cells of an earlier version have no checksum: their bodies are decoded"
                )
            rows += more
            found_bytes += sum(len(row[5]) for row in more if isinstance(row[5], bytes))
        return stored_cells(self._shard, rows)

    def rows(self, ids: range) -> list[tuple[Any, ...]]:
        return list(self._rows(ids))

    def _rows(self, ids: range) -> Iterator[tuple[Any, ...]]:
        sql = f"SELECT {CELL} FROM cell WHERE position >= ? AND position < ? ORDER BY position"  # noqa: S608
        try:
            yield from self._connection.execute(
                sql,
                (
                    position_of(self._shard, ids.start),
                    position_of(self._shard, ids.start) + len(ids),
                ),
            )
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise DataDamaged(str(sqlite_error(self._path, "", error))) from error
