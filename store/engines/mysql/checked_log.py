"""The log of one shard on one server of a cluster, as a check reads it, and its counter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import closing, contextmanager, suppress
from typing import Any

import pymysql
from pymysql.connections import Connection

from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.contract.findings import Findings, OnCells
from cellfeed.store.engines.contract.log_check import check_log
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.engines.mysql.cells import CELL, MICROSECONDS, cells_within
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.errors import failed
from cellfeed.store.engines.mysql.frames import ROWS_MAX, joined, of_joined, read_cells
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import DataDamaged


@contextmanager
def moment(server: MySqlServer) -> Iterator[Connection[Any]]:
    """A transaction that sees one moment."""
    with server.connection() as connection:
        query(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        query(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        yield connection
        query(connection, "COMMIT")


def head_of(connection: Connection[Any], layout: Layout, shard: int) -> Head | None:
    """The ends of a shard's log by the node's counter; None where the node has none."""
    at_us = MICROSECONDS.format("last_created_at")
    fields = f"log_start, next_added_id, next_added_id, leader_epoch, {at_us}, erasures"
    rows = query(
        connection, f"SELECT {fields} FROM {layout.meta}.shard_counter WHERE shard = {shard}"
    )
    return Head(*map(int, rows[0])) if rows else None


def columns_of(connection: Connection[Any], layout: Layout) -> set[str]:
    """The columns that the node says its cells have."""
    rows = query(connection, f"SELECT column_name FROM {layout.meta}.column_seen")
    return {name.decode(errors="replace") for (name,) in rows}


def check_ids(
    place: str,
    connection: Connection[Any],
    layout: Layout,
    shard: int,
    head: Head,
    columns: set[str],
    into: Findings,
    on_cells: OnCells,
    ahead: Executor,
) -> None:
    """Looks at the cells from ``head.log_start`` up to ``head.next_added_id``."""
    table, ids = f"{layout.database(shard)}.cell", range(head.log_start, head.next_added_id)
    with closing(_NodeLog(connection, table, shard, ids, ahead)) as log:
        check_log(place, shard, layout.shards, log, head, columns, into, on_cells)


def check_outside(
    place: str,
    connection: Connection[Any],
    layout: Layout,
    shard: int,
    head: Head,
    into: Findings,
) -> None:
    """Finds cells that lie outside of the shard's log."""
    outside = (
        f"SELECT COUNT(*), MIN(added_id), MAX(added_id) FROM {layout.database(shard)}.cell WHERE"
        f" added_id < {head.log_start} OR added_id >= {head.next_added_id}"
    )
    [(count, least, most)] = query(connection, outside)
    if int(count):
        text = (
            f"shard {shard} has {count} cells outside of its log, which goes from {head.log_start}"
            f" to {head.next_added_id - 1}: from {least} to {most}"
        )
        into.add("counter", place, text, shard, range(int(least), int(most) + 1))


class _NodeLog:
    """:class:`cellfeed.store.engines.contract.log_check.LogStorage`. The server joins the next
    piece while this process compares the checksums of one: it takes as long for that."""

    def __init__(
        self, connection: Connection[Any], table: str, shard: int, ids: range, beside: Executor
    ) -> None:
        self._connection, self._table, self._shard = connection, table, shard
        self._end, self._beside = ids.stop, beside
        self._ahead: tuple[range, Future[tuple[int, bytes]]] | None = None
        [(without,)] = query(
            connection,
            f"SELECT COUNT(*) - COUNT(crc) FROM {table} WHERE added_id >= {ids.start} AND added_id"
            f" < {ids.stop}",
        )
        self._all_have = int(without) == 0

    def cells(self, ids: range) -> list[StoredCell]:
        if not self._all_have:
            raise DataDamaged(
                "cells of an earlier version have no checksum: their bodies are decoded"
            )
        read = read_cells
        if len(ids) > ROWS_MAX:
            answer = self._joined(ids)
            following = range(ids.stop, min(ids.stop + len(ids), self._end))
            if len(following) > ROWS_MAX:
                self._ahead = following, self._beside.submit(self._read, following)
            if (found := of_joined(self._shard, *answer)) is not None:
                return found
            read = cells_within
        self.close()
        cells = read(self._connection, self._shard, self._table, ids.start, len(ids))
        return [cell for cell in cells if cell.added_id < ids.stop]

    def _read(self, ids: range) -> tuple[int, bytes]:
        return joined(self._connection, self._table, ids.start, len(ids))

    def _joined(self, ids: range) -> tuple[int, bytes]:
        ahead = self._ahead
        if ahead is not None and ahead[0] == ids:
            self._ahead = None
            return ahead[1].result()
        self.close()
        return self._read(ids)

    def close(self) -> None:
        """Waits for the rows that are read ahead, and drops them: a connection answers one question
        after the other."""
        if self._ahead is not None:
            wait([self._ahead[1]])
            self._ahead = None

    def rows(self, ids: range) -> list[tuple[Any, ...]]:
        sql = (
            f"SELECT {CELL} FROM {self._table} WHERE added_id >= {ids.start} AND added_id <"
            f" {ids.stop} ORDER BY added_id"
        )
        self.close()
        try:
            return [_values(row) for row in query(self._connection, sql)]
        except pymysql.err.MySQLError as error:
            damaged = failed(self._table, error)
            if isinstance(damaged, DataDamaged):
                raise damaged from error
            raise


def _values(row: Sequence[Any]) -> tuple[Any, ...]:
    """Values as a cell has them, where they can be such."""
    added_id, row_key, name, ref_key, at_us, body, crc = row
    with suppress(UnicodeDecodeError):  # bytes that are no name: a value that no cell has
        name = name.decode()
    return (
        int(added_id),
        row_key,
        name,
        int(ref_key),
        None if at_us is None else int(at_us),
        body,
        None if crc is None else int(crc),
    )
