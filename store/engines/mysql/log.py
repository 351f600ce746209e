"""Scans of a shard's log on one server; the rows themselves are
:mod:`cellfeed.store.engines.mysql.cells`'s.

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
from cellfeed.store.engines.mysql.cells import (
    CURE,
    ROWS_MAX,
    SMALL_FRAMED,
    cells_within,
    from_location,
    read_cells,
    unframe,
)
from cellfeed.store.engines.mysql.connections import MySqlServer, query
from cellfeed.store.engines.mysql.counters import MySqlCounters
from cellfeed.store.errors import Trimmed
from cellfeed.store.limits import SCAN_BYTES_MAX, SCAN_DECODED_BYTES_MAX

_body = itemgetter(5)

_SCAN_STEP: Final = 2_000
"""Rows in one framed answer: its 64 MB (``group_concat_max_len``) hold them at 32 kB each; larger
ones are fetched row by row."""


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
