"""The cells of one shard on one storage, looked at in the order of their ids.

Pieces whose checksums fit come as cells, and are looked at together. A piece with damage in it
comes as rows, one by one: each is named, or is well. Cells that cannot be read at all are named by
their ids.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, Protocol

from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.cell import RESTORED_COLUMN, StoredCell
from cellfeed.store.cells.checksum import cell_checksum
from cellfeed.store.cells.log_gaps import GapCheck
from cellfeed.store.cells.sharding import shards_of
from cellfeed.store.engines.contract.findings import Findings, Kind, OnCells
from cellfeed.store.errors import CellfeedError, DataDamaged

PIECE_CELLS: Final = 2_000
"""Cells in one piece, at most: some hundred kilobytes."""

ROWS_CELLS: Final = 64
"""Of a damaged piece, cells that are looked at one by one before the next piece: 64 MiB at most."""

_NO_CELL: Final = (struct.error, ValueError, TypeError, AttributeError)
"""Of values that no cell has: damage turns any value of a row into one of another type."""


class LogStorage(Protocol):
    """One shard's cells on one storage, of one moment."""

    def cells(self, ids: range) -> list[StoredCell]:
        """The cells of these ids, each as its checksum says: the first ones, where all have more
        bytes than one answer holds. Raises DataDamaged, also where one has no checksum."""
        ...

    def rows(self, ids: range) -> list[tuple[Any, ...]]:
        """The same, unchecked, each with its checksum behind its values. Raises DataDamaged where
        the storage itself cannot read."""
        ...


class Counted(Protocol):
    """A shard's counters on a storage."""

    @property
    def log_start(self) -> int: ...

    @property
    def next_added_id(self) -> int: ...

    @property
    def last_created_at_us(self) -> int: ...


def check_log(
    place: str,
    shard: int,
    shards: int,
    storage: LogStorage,
    counted: Counted,
    columns: set[str],
    into: Findings,
    on_cells: OnCells,
) -> None:
    """Adds every fault to ``into``. ``columns``: those that the storage says its cells have."""
    check, start = _LogCheck(place, shard, shards, counted, columns, into), counted.log_start
    while start < counted.next_added_id:
        ids = range(start, min(start + PIECE_CELLS, counted.next_added_id))
        try:
            cells = storage.cells(ids)
            check.add_cells(cells)
            stop = cells[-1].added_id + 1 if cells else ids.stop
        except DataDamaged:
            ids = ids[:ROWS_CELLS]
            check.add_rows(_readable(check, storage, ids))
            stop = ids.stop
        on_cells(stop - start)
        start = stop
    check.end()


def _readable(check: _LogCheck, storage: LogStorage, ids: range) -> Iterator[tuple[Any, ...]]:
    """The rows that can be read; the others are named."""
    try:
        yield from storage.rows(ids)
        return
    except DataDamaged as error:
        if len(ids) == 1:
            check.unreadable(ids, error)
            return
    middle = ids.start + len(ids) // 2
    yield from _readable(check, storage, range(ids.start, middle))
    yield from _readable(check, storage, range(middle, ids.stop))


class _LogCheck:
    def __init__(
        self,
        place: str,
        shard: int,
        shards: int,
        counted: Counted,
        columns: set[str],
        into: Findings,
    ) -> None:
        self._place, self._shard, self._shards, self._counted, self._columns, self._into = (
            place,
            shard,
            shards,
            counted,
            columns,
            into,
        )
        self._gaps = GapCheck(shard, counted.log_start)
        self._last_at_us = 0

    def add_cells(self, cells: Sequence[StoredCell]) -> None:
        """Cells whose checksums fit, or that have none."""
        if not cells:
            return
        self._into.cells += len(cells)
        row_keys, names, times = (
            [cell.row_key for cell in cells],
            {cell.column_name for cell in cells},
            [cell.created_at_us for cell in cells],
        )
        if cells[-1].added_id - cells[0].added_id + 1 == len(cells):
            self._gaps.add(cells[0].added_id, cells[0].column_name, _body_json(cells[0]))
            self._gaps.skip_to(cells[-1].added_id + 1)
        else:
            for cell in cells:
                self._gaps.add(cell.added_id, cell.column_name, _body_json(cell))
        if (shards := shards_of(row_keys, self._shards)).count(self._shard) != len(cells):
            for cell, shard in zip(cells, shards, strict=True):
                if shard != self._shard:
                    self._add(
                        "key", f"the row of this cell belongs to shard {shard}", cell.added_id
                    )
        if times[0] < self._last_at_us or times != sorted(times):
            for one, two in pairwise([self._last_at_us, *times]):
                if two < one:
                    self._add(
                        "counter",
                        "its created_at is before that of the cell before it",
                        cells[times.index(two)].added_id,
                    )
        self._last_at_us = max(self._last_at_us, *times)
        for name in names - self._columns:
            added_id = next(cell.added_id for cell in cells if cell.column_name == name)
            self._add(
                "counter",
                f"column {name!r} is not among the columns that the storage says it has",
                added_id,
            )
            self._columns.add(name)

    def add_rows(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Rows, unchecked."""
        well: list[StoredCell] = []
        for row in rows:
            if (damage := self._damage(row)) is None:
                well.append(StoredCell._make(row[:6]))
                continue
            self.add_cells(well)
            well = []
            self._add_damaged(row, damage)
        self.add_cells(well)

    def _damage(self, row: tuple[Any, ...]) -> str | None:
        """The fault of a row as such; None when it is a cell in good order."""
        try:
            if row[6] is None:
                decode_body(row[5])  # its frame has a checksum of the body
                cell_checksum(*row[:6])  # and its values are those of a cell
                self._into.without_checksum += 1
                return None
            return None if cell_checksum(*row[:6]) == row[6] else "it does not match its checksum"
        except CellfeedError as error:
            return f"its body cannot be decoded: {error}"
        except _NO_CELL:
            return "it has a value that no cell has"

    def _add_damaged(self, row: tuple[Any, ...], damage: str) -> None:
        added_id = row[0]
        self._into.cells += 1
        if row[2] != RESTORED_COLUMN:
            self._gaps.add(added_id, "", b"")
        self._gaps.skip_to(
            added_id + 1
        )  # which ids a restore has left out, a damaged cell does not say
        self._add("checksum", f"the cell is damaged: {damage}", added_id)

    def unreadable(self, ids: range, error: DataDamaged) -> None:
        """The storage cannot read these."""
        self._gaps.add(ids.start, "", b"")
        self._into.add(
            "unread",
            self._place,
            f"shard {self._shard}, added_id {ids.start}: {error}",
            self._shard,
            ids,
        )

    def end(self) -> None:
        """No further cell comes."""
        self._gaps.end(self._counted.next_added_id)
        for missing in self._gaps.missing:
            self._into.add(
                "gap",
                self._place,
                f"shard {self._shard} lacks cells {missing.start} to {missing.stop - 1}",
                self._shard,
                missing,
            )
        if self._last_at_us > self._counted.last_created_at_us:
            text = (
                f"shard {self._shard}: the counter's last created_at,"
                f" {self._counted.last_created_at_us} µs, is before that of a cell,"
                f" {self._last_at_us} µs"
            )
            self._into.add("counter", self._place, text, self._shard)

    def _add(self, kind: Kind, text: str, added_id: int) -> None:
        self._into.add(
            kind,
            self._place,
            f"shard {self._shard}, added_id {added_id}: {text}",
            self._shard,
            range(added_id, added_id + 1),
        )


def _body_json(cell: StoredCell) -> bytes:
    """The body of a cell that a restore has put behind ids that it left out; only those are asked
    for."""
    return decode_body(cell.body) if cell.column_name == RESTORED_COLUMN else b""
