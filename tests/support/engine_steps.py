"""A clock, cells, logs and erasures for the tests of the engine contract."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.cell import NewCell, new_cell
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.engines.contract.engine import Engine

SHARDS = 4


SCANS = {"sqlite": "sqlite.log", "mysql": "mysql.log"}
"""The module of each kind of engine that scans logs."""


class Clock:
    """The storage's clock, set by a test by hand, microseconds."""

    def __init__(self) -> None:
        self.now_us = 1_700_000_000_000_000

    def __call__(self) -> int:
        return self.now_us


EngineMaker = Callable[..., Engine]


def cell(
    number: int = 0, column: str = "BASE", ref_key: int = 1, row: UUID | None = None
) -> NewCell:
    return new_cell(row or UUID(int=number), column, ref_key, {"n": number})


def rows_of_shard(shard: int, count: int) -> list[UUID]:
    found: list[UUID] = []
    number = 0
    while len(found) < count:
        if shard_of(UUID(int=number).bytes, SHARDS) == shard:
            found.append(UUID(int=number))
        number += 1
    return found


def log(engine: Engine) -> dict[int, list[tuple[int, bytes, str, int, bytes]]]:
    return {
        shard: [
            (c.added_id, c.row_key, c.column_name, c.ref_key, decode_body(c.body))
            for c in engine.scan(shard, 0, 10_000)
        ]
        for shard in range(engine.shards)
    }


def logged(engine: Engine, count: int, shard: int = 1) -> list[NewCell]:
    """So many cells, all of one shard, put in this order."""
    cells = [cell(row=row) for row in rows_of_shard(shard, count)]
    engine.put(cells)
    return cells


def erase(engine: Engine, row: UUID, cells_max: int = 1_000) -> tuple[int, int]:
    """The added_id of the entry, and how many bodies were taken, in as many steps as it needs."""
    taken = 0
    while True:
        step = engine.erase(row.bytes, cells_max)
        taken += step.cells
        if step.done:
            return step.added_id, taken
