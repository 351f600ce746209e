"""Reads of a shard's log on one server: scans, and searches by time and for newer cells.

The rows themselves are :mod:`cellfeed.store.engines.mysql.cells`'s, framed answers
:mod:`cellfeed.store.engines.mysql.frames`'s.

A log has no gaps (E2), so a cell missing between others is damage. A cell missing behind them may
not have been written yet. So the scan reads the counter, which says which ids are given out, and
looks once more from there on. That look finds cells that have come meanwhile, or that a restore
left ids out (E23). A scan below a watermark that was shown pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final

from pymysql.connections import Connection

from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.contract.log_start import check_scan
from cellfeed.store.engines.contract.read_bounds import decoded, within_scan
from cellfeed.store.engines.contract.scan_gaps import has_gap, refuse_gap
from cellfeed.store.engines.contract.values import LogRange
from cellfeed.store.engines.mysql.cells import CURE, cells_within, from_location, sql_moment
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.counters import MySqlCounters
from cellfeed.store.engines.mysql.frames import ROWS_MAX, SMALL_FRAMED, read_cells, unframe
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import Trimmed
from cellfeed.store.limits import SCAN_BYTES_MAX, SCAN_DECODED_BYTES_MAX

_body = itemgetter(5)

_SCAN_STEP: Final = 2_000
"""Rows in one framed answer: its 64 MB (``group_concat_max_len``) hold them at 32 kB each; larger
ones are fetched row by row."""


_SEARCH: Final = """
    WITH RECURSIVE search (low, high, middle) AS (
        SELECT log_start, next_added_id, (log_start + next_added_id) DIV 2
        FROM {0} WHERE shard = {2}
        UNION ALL
        SELECT
            IF(cell.created_at < {3}, middle + 1, low),
            IF(cell.created_at < {3}, high, middle),
            IF(cell.created_at < {3}, (middle + 1 + high) DIV 2, (low + middle) DIV 2)
        FROM search JOIN {1} AS cell ON cell.added_id = search.middle WHERE low < high
    )
    SELECT MAX(low), MIN(high) FROM search"""
"""A binary search by id on the server, in one snapshot: created_at never goes back within a shard
(E4), so it needs no index on it. Of a table of counters, a table of cells, a shard and a moment.
Its end is where both bounds are equal, or an id that has no cell."""


class MySqlLog:
    """Of the shards of one server. Raises DataDamaged for a cell that is not the one that was
    written, and for a gap; Trimmed; ShardMoving."""

    def __init__(
        self, server: MySqlServer, shard_database: Callable[[int], str], counters: MySqlCounters
    ) -> None:
        self._server = server
        self._database = shard_database
        self._counters = counters

    def scan(self, shard: int, location: int, limit: int) -> list[StoredCell]:
        cells: list[StoredCell] = []
        scanned_bytes = 0
        with self._server.connection() as connection:
            while len(cells) < limit:
                begin = cells[-1].added_id + 1 if cells else location
                wanted = min(_SCAN_STEP, limit - len(cells))
                step = read_cells(connection, shard, self._table(shard), begin, wanted)
                try:
                    self._check(connection, LogRange(shard, begin, wanted), step)
                except Trimmed:
                    if cells:
                        # they were there when they were read; the next scan behind them raises
                        return within_scan(cells)
                    raise
                step_bytes = sum(map(len, map(_body, step)))
                if scanned_bytes + step_bytes > SCAN_BYTES_MAX:
                    return within_scan(cells + _within_scan_bytes(step, scanned_bytes))
                scanned_bytes += step_bytes
                cells += step
                if len(step) < _SCAN_STEP:
                    break
        return within_scan(cells)

    def scan_many(self, ranges: Sequence[LogRange]) -> list[list[StoredCell]]:
        found: dict[int, list[StoredCell]] = {}
        together: list[int] = []
        cells = 0
        for index, each in enumerate(ranges):
            if each.limit > ROWS_MAX:
                found[index] = self.scan(*each)
                continue
            if cells + each.limit > _SCAN_STEP:
                found.update(self._scan_together(ranges, together))
                together, cells = [], 0
            together.append(index)
            cells += each.limit
        found.update(self._scan_together(ranges, together))
        decoded_bytes = 0
        for index in range(len(ranges)):
            if decoded_bytes >= SCAN_DECODED_BYTES_MAX:
                found[index] = found[index][:1]
            decoded_bytes += decoded(found[index])
        return [found[index] for index in range(len(ranges))]

    def superseded(
        self, shard: int, start: int, end: int, log_start: int, watermark: int
    ) -> set[int]:
        """As the contract's."""
        cells = f"{self._database(shard)}.cell"
        # The index by key is read backwards up to its first entry: as cheap for a row of a million
        # revisions (EXISTS would pass all the lower ref keys).
        newest = (
            f"SELECT newer.ref_key FROM {cells} AS newer WHERE newer.row_key = older.row_key AND"
            f" newer.column_name = older.column_name AND newer.added_id >= {log_start:d} AND"
            f" newer.added_id < {watermark:d} ORDER BY newer.ref_key DESC LIMIT 1"
        )
        sql = (
            f"SELECT older.added_id FROM {cells} AS older WHERE older.added_id >= {start:d} AND"
            f" older.added_id < {end:d} AND older.ref_key < ({newest})"
        )
        with self._server.connection() as connection:
            return {int(added_id) for (added_id,) in query(connection, sql)}

    def locate(self, shard: int, created_at_us: int) -> int:
        """As the contract's."""
        cell_table, wanted = self._table(shard), sql_moment(created_at_us)
        with self._server.connection() as connection:
            [(low, high)] = query(
                connection, _SEARCH.format(self._counters.table, cell_table, shard, wanted)
            )
            if low is None:
                raise self._counters.moved(shard)
            # The server stopped at an id that a restore left out (E23): the next one counts there.
            low, high = int(low), int(high)
            while low < high:
                middle = (low + high) // 2
                sql = (
                    f"SELECT added_id, created_at >= {wanted} FROM {cell_table} WHERE added_id >="
                    f" {middle} AND added_id < {high} ORDER BY added_id LIMIT 1"
                )
                rows = query(connection, sql)
                if not rows or int(rows[0][1]):
                    high = middle
                else:
                    low = int(rows[0][0]) + 1
        return low

    def _scan_together(
        self, ranges: Sequence[LogRange], indexes: Sequence[int]
    ) -> dict[int, list[StoredCell]]:
        """The ranges of these indexes in one answer, a row per cell."""
        if not indexes:
            return {}
        selects = [
            f"(SELECT {index}, {SMALL_FRAMED} FROM {self._table(ranges[index].shard)}"
            f" {from_location(*ranges[index][1:])})"
            for index in indexes
        ]
        frames: dict[int, list[bytes | None]] = {index: [] for index in indexes}
        cells = {}
        with self._server.connection() as connection:
            for index, frame in query(connection, " UNION ALL ".join(selects)):
                frames[int(index)].append(frame)
            for index, found in frames.items():
                each = ranges[index]
                cells[index] = unframe(each.shard, found, partial(self._plain, connection, each))
                if each.limit > 0:
                    self._check(connection, each, cells[index])
        return {index: within_scan(_within_scan_bytes(found)) for index, found in cells.items()}

    def _plain(self, connection: Connection[Any], wanted: LogRange) -> list[StoredCell]:
        return cells_within(
            connection, wanted.shard, self._table(wanted.shard), wanted.location, wanted.limit
        )

    def _check(
        self, connection: Connection[Any], wanted: LogRange, found: Sequence[StoredCell]
    ) -> None:
        """Raises Trimmed, DataDamaged unless these are the cells of that range, as far as the log
        goes."""
        shard, location, limit = wanted
        check_scan(shard, location, found, lambda: self._counters.log_start(connection, shard))
        if has_gap(location, found):
            refuse_gap(shard, location, found, location, CURE)
        expected = found[-1].added_id + 1 if found else location
        if expected < location + limit and expected < (
            end := self._counters.next_added_id(connection, shard)
        ):
            rest = read_cells(connection, shard, self._table(shard), expected, 1)
            check_scan(shard, expected, rest, lambda: self._counters.log_start(connection, shard))
            refuse_gap(shard, expected, rest, expected if rest else end, CURE)

    def _table(self, shard: int) -> str:
        return f"{self._database(shard)}.cell"


def _within_scan_bytes(cells: list[StoredCell], before_bytes: int = 0) -> list[StoredCell]:
    """The first of them, as many as one scan may give behind others of so many bytes; without
    others one at least."""
    scanned_bytes = before_bytes
    for index, cell in enumerate(cells):
        scanned_bytes += len(cell.body)
        if scanned_bytes > SCAN_BYTES_MAX and (index or before_bytes):
            return cells[:index]
    return cells
