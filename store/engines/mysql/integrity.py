"""What one server of a cluster says of itself: MariaDB's own check of its tables, keys, counters,
and the cells as they lie there. Nothing is written.

Each shard is read in one transaction of one moment: its cells, its counter, its keys. So puts,
trims and erasures meanwhile make no findings, and a minion is held against its own counters,
however far behind it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

import pymysql
from pymysql.connections import Connection

from cellfeed.store.cells import known_dictionaries
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.contract.findings import Findings, OnCells
from cellfeed.store.engines.contract.log_check import check_log
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.engines.mysql.cells import (
    CELL,
    MICROSECONDS,
    ROWS_MAX,
    cells_within,
    joined,
    of_joined,
    read_cells,
)
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.dictionaries import MySqlDictionaries
from cellfeed.store.engines.mysql.errors import failed
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import CellfeedError, DataDamaged, ShardMoving

ANSWER_TIMEOUT_S: Final = 3_600.0
"""Longest wait for one statement, in seconds: CHECK TABLE reads a table of any size as a whole."""

_META_TABLES: Final = (
    "datastore", "shard_counter", "leader_epoch", "state_entry", "state_revision", "column_seen", "buffered_cell", "dictionary", "dictionary_turn",  # noqa: E501
    "shard_arriving", "shard_leaving",
)  # fmt: skip

_KEY_SUM: Final = "SUM(CRC32(CONCAT(row_key, column_name, ref_key, ',', added_id)))"


def check_node(
    place: str,
    server: MySqlServer,
    layout: Layout,
    into: Findings,
    on_cells: OnCells = lambda _: None,
) -> None:
    """Looks at every shard that the node serves, and at the cluster's own tables. Raises
    StorageUnavailable when it does not answer."""
    patient = MySqlServer(server.address, ANSWER_TIMEOUT_S)
    try:
        _check_tables(place, patient, [f"{layout.meta}.{name}" for name in _META_TABLES], into)
        with patient.connection() as connection:
            counters = {
                int(shard): range(int(start), int(end))
                for shard, start, end in _counters(connection, layout)
            }
            columns = {
                name.decode(errors="replace")
                for (name,) in query(
                    connection, f"SELECT column_name FROM {layout.meta}.column_seen"
                )
            }
        own = Findings()
        with (
            known_dictionaries.source(MySqlDictionaries(patient, layout.meta).find),
            ThreadPoolExecutor(1, thread_name_prefix="integrity") as beside,
            ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as ahead,
        ):  # the server has more to do with a shard than this process has
            checked = [
                beside.submit(_check_table, place, patient, layout, shard, own)
                for shard in sorted(counters)
            ]
            for shard in sorted(counters):
                _each(
                    place,
                    shard,
                    into,
                    lambda shard=shard: _check_cells(  # type: ignore[misc]
                        place, patient, layout, shard, set(columns), into, on_cells, ahead
                    ),
                )
            for each in checked:
                each.result()
        into.take(own)
    finally:
        patient.close()


def _each(place: str, shard: int, into: Findings, check: Callable[[], None]) -> None:
    try:
        check()
    except ShardMoving:
        pass  # it has left meanwhile: the node that serves it now is asked for it
    except DataDamaged as error:
        into.add("unread", place, f"shard {shard}: {error}", shard)


def ids_of(server: MySqlServer, layout: Layout) -> int:
    """How many ids the counters have given, for a progress bar. Raises StorageUnavailable."""
    with server.connection() as connection:
        return sum(int(end) - int(start) for _, start, end in _counters(connection, layout))


def _counters(connection: Connection[Any], layout: Layout) -> Sequence[tuple[Any, ...]]:
    return query(
        connection, f"SELECT shard, log_start, next_added_id FROM {layout.meta}.shard_counter"
    )


def _check_cells(
    place: str,
    server: MySqlServer,
    layout: Layout,
    shard: int,
    columns: set[str],
    into: Findings,
    on_cells: OnCells,
    ahead: Executor,
) -> None:
    with _moment(server) as connection:
        _check_shard(place, connection, layout, shard, columns, into, on_cells, ahead)


def _check_table(
    place: str, server: MySqlServer, layout: Layout, shard: int, into: Findings
) -> None:
    """The server's own check of the shard's cells, and whether its keys name the same cells as its
    places do."""

    def check() -> None:
        table = f"{layout.database(shard)}.cell"
        _check_tables(place, server, [table], into)
        with _moment(server) as connection:
            by_place, by_key = (
                query(
                    connection, f"SELECT COUNT(*), {_KEY_SUM} FROM {table} FORCE INDEX ({index})"
                )[0]
                for index in ("PRIMARY", "triple")
            )
        if by_place != by_key:
            text = (
                f"shard {shard}: its cells are not found by their keys: {by_place[0]} cells,"
                f" {by_key[0]} keys, and their sums differ"
            )
            into.add("key", place, text, shard)

    _each(place, shard, into, check)


def _check_shard(
    place: str,
    connection: Connection[Any],
    layout: Layout,
    shard: int,
    columns: set[str],
    into: Findings,
    on_cells: OnCells,
    ahead: Executor,
) -> None:
    moment = MICROSECONDS.format("last_created_at")
    fields = f"log_start, next_added_id, next_added_id, leader_epoch, {moment}, erasures"
    rows = query(
        connection, f"SELECT {fields} FROM {layout.meta}.shard_counter WHERE shard = {shard}"
    )
    if not rows:
        return  # as for one that has left
    head = Head(*map(int, rows[0]))
    table = f"{layout.database(shard)}.cell"
    new = query(connection, f"SELECT column_name FROM {layout.meta}.column_seen")
    columns |= {name.decode(errors="replace") for (name,) in new}
    with closing(_MySqlLog(connection, table, shard, head.next_added_id, ahead)) as log:
        check_log(place, shard, layout.shards, log, head, columns, into, on_cells)
    outside = (
        f"SELECT COUNT(*), MIN(added_id), MAX(added_id) FROM {table} WHERE added_id <"
        f" {head.log_start} OR added_id >= {head.next_added_id}"
    )
    [(count, least, most)] = query(connection, outside)
    if int(count):
        text = (
            f"shard {shard} has {count} cells outside of its log, which goes from {head.log_start}"
            f" to {head.next_added_id - 1}: from {least} to {most}"
        )
        into.add("counter", place, text, shard, range(int(least), int(most) + 1))


class _MySqlLog:
    """:class:`cellfeed.store.engines.contract.log_check.LogStorage`. The server joins the next
    piece while this process compares the checksums of one: it takes as long for that."""

    def __init__(
        self, connection: Connection[Any], table: str, shard: int, end: int, beside: Executor
    ) -> None:
        self._connection, self._table, self._shard = connection, table, shard
        self._end, self._beside = end, beside
        self._ahead: tuple[range, Future[tuple[int, bytes]]] | None = None
        [(without,)] = query(connection, f"SELECT COUNT(*) - COUNT(crc) FROM {table}")
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
        """Waits for what is read ahead, and drops it: a connection answers one question after the
        other."""
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


def _check_tables(place: str, server: MySqlServer, tables: Sequence[str], into: Findings) -> None:
    """MariaDB's own check: pages, and as many entries in each index as rows."""
    for table in tables:
        try:
            with server.connection() as connection:
                answers = query(connection, f"CHECK TABLE {table}")
        except DataDamaged as error:
            into.add("integrity", place, str(error))
            continue
        except CellfeedError as error:
            into.add("unread", place, f"{table}: {error}")
            return
        for _, _, kind, text in answers:
            if kind.lower() in ("error", "warning") or (kind.lower() == "status" and text != "OK"):
                into.add("integrity", place, f"{table}: {text}")


@contextmanager
def _moment(server: MySqlServer) -> Iterator[Connection[Any]]:
    """A transaction that sees one moment."""
    with server.connection() as connection:
        query(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        query(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        yield connection
        query(connection, "COMMIT")
