"""Pieces of logs for a follower: cells up to the first that cannot be read."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final, NamedTuple

from cellfeed.store.cells.cell import Cell, StoredCell
from cellfeed.store.cells.from_stored import cell_from_stored
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.read_bounds import within_scan
from cellfeed.store.engines.contract.values import LogRange
from cellfeed.store.errors import CellfeedError, DataDamaged

PIECE_CELLS_MAX: Final = 1_000
"""Cells read for a follower at once."""

PIECE_BYTES_MAX: Final = 2 << 20
"""Decoded body bytes kept for a follower at once, a cell at least. A worker has them some three
times over while it sends them."""


class Piece(NamedTuple):
    """A piece of one shard's log. ``cells``: those of the columns asked for. ``error``: the reason
    why nothing from ``next_location`` on is in it; None where it could be read. ``is_cut``: more
    was read than a piece may keep."""

    shard: int
    cells: Sequence[Cell]
    next_location: int
    error: CellfeedError | None = None
    is_cut: bool = False


def read_pieces(
    engine: Engine, ranges: Sequence[LogRange], columns: Set[str] | None
) -> list[Piece]:
    """A piece for each range. An error in one shard leaves the other pieces as they are."""
    if len(ranges) > 1:
        try:
            found = engine.scan_many(ranges)
        except CellfeedError:
            pass  # each by itself, to learn which
        else:
            return [
                _piece(each, stored, columns) for each, stored in zip(ranges, found, strict=True)
            ]
    return [_read(engine, each, columns) for each in ranges]


def _read(engine: Engine, wanted: LogRange, columns: Set[str] | None) -> Piece:
    """Where a cell is damaged, the cells before it: of half the range, and half of that."""
    limit = wanted.limit
    while True:
        try:
            stored = engine.scan(wanted.shard, wanted.location, limit)
        except DataDamaged as error:
            if limit == 1:
                return Piece(wanted.shard, [], wanted.location, error)
            limit //= 2
        except CellfeedError as error:
            return Piece(wanted.shard, [], wanted.location, error)
        else:
            return _piece(wanted, stored, columns)


def _piece(wanted: LogRange, stored: list[StoredCell], columns: Set[str] | None) -> Piece:
    kept = within_scan(stored, PIECE_BYTES_MAX)
    cells: list[Cell] = []
    for each in kept:
        if columns is None or each.column_name in columns:
            try:
                cells.append(cell_from_stored(wanted.shard, each))
            except CellfeedError as error:
                return Piece(wanted.shard, cells, each.added_id, error)
    return Piece(
        wanted.shard,
        cells,
        kept[-1].added_id + 1 if kept else wanted.location,
        is_cut=len(kept) < len(stored),
    )
