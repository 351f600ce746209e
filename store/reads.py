"""Reads of a store over an engine: cells by key, rows, and a shard's log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from cellfeed.store.api import Location, ReadFrom, RowKey, ShardCells
from cellfeed.store.arguments import (
    check_key_count,
    check_location,
    check_read_from,
    check_scan_limit,
)
from cellfeed.store.cells.body_codec import is_erased
from cellfeed.store.cells.cell import (
    Cell,
    Triple,
    check_column_name,
    check_ref_key,
    check_row_key,
    microseconds,
)
from cellfeed.store.cells.from_stored import cell_from_stored
from cellfeed.store.cells.rows_page import RowsPage, with_page
from cellfeed.store.cells.sharding import check_shard, shard_of
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.read_bounds import Page, within_scan
from cellfeed.store.engines.contract.values import Head, LocatedCell, Replica
from cellfeed.store.errors import (
    AnswerTooLarge,
    Trimmed,
)
from cellfeed.store.limits import SCAN_DECODED_BYTES_MAX

T = TypeVar("T")


class Reads:
    """The reads of :class:`cellfeed.store.api.CellStore`. Any number of threads may call them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def shards(self) -> int:
        return self.engine.shards

    def get_cell(
        self, row_key: RowKey, column_name: str, ref_key: int, *, read_from: ReadFrom = "master"
    ) -> Cell | None:
        return self.get_cells([(row_key, column_name, ref_key)], read_from=read_from)[0]

    def get_cell_latest(
        self, row_key: RowKey, column_name: str, *, read_from: ReadFrom = "master"
    ) -> Cell | None:
        return self.get_cells_latest([(row_key, column_name)], read_from=read_from)[0]

    def get_row(self, row_key: RowKey, *, read_from: ReadFrom = "master") -> dict[str, Cell]:
        return self.get_rows([row_key], read_from=read_from)[0]

    def get_cells(
        self, triples: Sequence[tuple[RowKey, str, int]], *, read_from: ReadFrom = "master"
    ) -> list[Cell | None]:
        check_key_count(triples)
        wanted = [
            Triple(check_row_key(row_key), check_column_name(column), check_ref_key(ref_key))
            for row_key, column, ref_key in triples
        ]
        return self._cells(wanted, self.engine.get, read_from)

    def get_cells_latest(
        self, keys: Sequence[tuple[RowKey, str]], *, read_from: ReadFrom = "master"
    ) -> list[Cell | None]:
        check_key_count(keys)
        wanted = [(check_row_key(row_key), check_column_name(column)) for row_key, column in keys]
        return self._cells(wanted, self.engine.latest, read_from)

    def get_rows(
        self, row_keys: Sequence[RowKey], *, read_from: ReadFrom = "master"
    ) -> list[dict[str, Cell]]:
        page = self.get_rows_page(row_keys, read_from=read_from)
        rows = page.rows
        while page.next_row is not None:
            first = page.next_row
            page = self.get_rows_page(
                row_keys[first:], read_from=read_from, after_column=page.after_column
            ).moved(first)
            rows = with_page(rows, page.rows, first)
        return rows

    def get_cells_page(
        self, triples: Sequence[tuple[RowKey, str, int]], *, read_from: ReadFrom = "master"
    ) -> list[Cell | None]:
        """:meth:`get_cells` of the first of these keys: with the cell that brings the answer to
        ``READ_BYTES_MAX`` it ends. At least one."""
        check_key_count(triples)
        wanted = [
            Triple(check_row_key(row_key), check_column_name(column), check_ref_key(ref_key))
            for row_key, column, ref_key in triples
        ]
        return [_cell(found) for found in self.engine.get(wanted, check_read_from(read_from))]

    def get_cells_latest_page(
        self, keys: Sequence[tuple[RowKey, str]], *, read_from: ReadFrom = "master"
    ) -> list[Cell | None]:
        """:meth:`get_cells_latest` of the first of these keys, likewise."""
        check_key_count(keys)
        wanted = [(check_row_key(row_key), check_column_name(column)) for row_key, column in keys]
        return [_cell(found) for found in self.engine.latest(wanted, check_read_from(read_from))]

    def get_rows_page(
        self, row_keys: Sequence[RowKey], *, read_from: ReadFrom = "master", after_column: str = ""
    ) -> RowsPage:
        """:meth:`get_rows` of the first of these rows, likewise, of the first one the columns
        behind ``after_column``. The last row may continue in the next page."""
        check_key_count(row_keys)
        after = check_column_name(after_column) if after_column else ""
        found = self.engine.row(
            [check_row_key(row_key) for row_key in row_keys], check_read_from(read_from), after
        )
        rows = [
            {
                each.cell.column_name: cell_from_stored(each.shard, each.cell, stale=each.stale)
                for each in row
                if not is_erased(each.cell.body)
            }
            for row in found
        ]
        page = Page()
        page.take([each.cell.body for row in found for each in row])
        if page.is_full and found[-1]:
            return RowsPage(rows, len(rows) - 1, found[-1][-1].cell.column_name)
        return RowsPage(rows, len(rows) if len(rows) < len(row_keys) else None)

    def _cells(
        self,
        wanted: list[T],
        read: Callable[[Sequence[T], Replica], list[LocatedCell | None]],
        read_from: ReadFrom,
    ) -> list[Cell | None]:
        """All of them: page by page, so that no more than a page is held twice."""
        replica = check_read_from(read_from)
        cells: list[Cell | None] = []
        while len(cells) < len(wanted):
            cells += map(_cell, read(wanted[len(cells) :], replica))
        return cells

    def get_cells_for_shard(
        self, shard_no: int, location: Location = 0, limit: int = 1000
    ) -> ShardCells:
        check_scan_limit(limit)
        return self._piece(shard_no, location, limit, SCAN_DECODED_BYTES_MAX)

    def _piece(self, shard_no: int, location: Location, limit: int, bytes_max: int) -> ShardCells:
        check_shard(shard_no, self.shards)
        start = self._next_added_id(shard_no, location)
        try:
            stored = self.engine.scan(shard_no, start, limit)
        except Trimmed:
            if isinstance(location, int):
                raise
            # the moment's place was trimmed since it was looked for: the log begins behind it now
            start = self._next_added_id(shard_no, location)
            stored = self.engine.scan(shard_no, start, limit)
        stored = within_scan(stored, bytes_max)
        # The head is read after the cells, so it is never behind those that come with it.
        head = self.engine.heads([shard_no])[shard_no]
        next_location = stored[-1].added_id + 1 if stored else start
        return ShardCells(
            shard_no, [cell_from_stored(shard_no, cell) for cell in stored], next_location, head
        )

    def get_cells_for_shards(
        self, locations: Mapping[int, Location], limit: int = 1000, *, bytes_max: int = sys.maxsize
    ) -> dict[int, ShardCells]:
        """As the protocol's. Raises AnswerTooLarge when a cell of each shard is more than
        ``bytes_max``, decoded."""
        check_scan_limit(limit)
        pieces: dict[int, ShardCells] = {}
        decoded_bytes = 0
        for shard, location in locations.items():
            # Each gives a cell: its reader continues, and does not take it for the end of the log.
            left = max(SCAN_DECODED_BYTES_MAX - decoded_bytes, 0)
            pieces[shard] = piece = self._piece(shard, location, limit if left else 1, left)
            decoded_bytes += sum(len(cell.body_json) for cell in piece.cells)
            if decoded_bytes > bytes_max:
                raise AnswerTooLarge(
                    f"a cell of each of {len(locations)} shards is more than {bytes_max} bytes: ask"
                    " for fewer shards at once"
                )
        return pieces

    def heads(self) -> dict[int, Head]:
        return self.engine.heads()

    def shard_of(self, row_key: RowKey) -> int:
        return shard_of(check_row_key(row_key), self.shards)

    def _next_added_id(self, shard: int, location: Location) -> int:
        checked = check_location(location)
        return (
            checked
            if isinstance(checked, int)
            else self.engine.locate(shard, microseconds(checked))
        )


def _cell(found: LocatedCell | None) -> Cell | None:
    """The answer of a read by key: an erased cell is not there. The log alone shows its place."""
    return (
        cell_from_stored(found.shard, found.cell, stale=found.stale)
        if found and not is_erased(found.cell.body)
        else None
    )
