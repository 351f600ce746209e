"""The pages that show: none of them changes anything."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

from litestar import get
from litestar.response import Template

from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.console.door import Visitor
from cellfeed.console.frame import AnyRequest, ConsoleState, asked, page
from cellfeed.console.life import row_life
from cellfeed.console.sight import (
    check_number,
    readable,
    readable_parked,
)
from cellfeed.store.cells.cell import Cell, microseconds
from cellfeed.store.cells.sharding import check_shard
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidRequest

CELLS_OF_A_PAGE: Final = 50
PARKED_OF_A_PAGE: Final = 200
LOOKED_THROUGH_MAX: Final = 10_000
"""Cells of a shard that one page looks through for those of a column."""


@get("/", sync_to_thread=True)
def stuck_parts(state: ConsoleState, caller: Visitor) -> Template:
    """The parts that stand still."""
    return page(state, caller, "stuck", "Stuck")


@get("/log", sync_to_thread=True)
def log(request: AnyRequest, state: ConsoleState, caller: Visitor) -> Template:
    """The newest cells of all shards; or those of one from an added_id on."""
    datastore = state.instance.datastore
    shard, location, column = (asked(request, name) for name in ("shard", "from", "column"))
    heads = datastore.heads()
    if not shard:
        newest = state.newest.read(heads, CELLS_OF_A_PAGE, column or None)[::-1]
        cells = readable(caller, newest)
        return page(
            state, caller, "log", "Log", cells=cells, shard="", column=column, following=None
        )
    number = check_number("shard", shard)
    check_shard(number, datastore.shards)
    head = heads[number]
    start = max(_start(datastore, number, location), head.log_start)
    shown: list[Cell] = []
    looked_until = min(head.watermark, start + LOOKED_THROUGH_MAX)
    while start < looked_until and len(shown) < CELLS_OF_A_PAGE:
        piece = datastore.get_cells_for_shard(number, start, CELLS_OF_A_PAGE)
        if not piece.cells:
            break
        for cell in piece.cells:
            start = cell.added_id + 1
            if not column or cell.column_name == column:
                shown.extend(readable(caller, [cell]))
            if len(shown) == CELLS_OF_A_PAGE:
                break
    return page(
        state,
        caller,
        "log",
        f"Log of shard {number}",
        cells=shown,
        shard=number,
        column=column,
        head=head,
        following=start if start < head.watermark else None,
    )


@get("/row", sync_to_thread=True)
def row(request: AnyRequest, state: ConsoleState, caller: Visitor) -> Template:
    """A row's life."""
    key = asked(request, "key")
    if not key:
        return page(state, caller, "row", "Row", key="", life=None)
    try:
        row_key = UUID(key)
    except ValueError:
        raise InvalidRequest(f"{ascii(key)[:60]} is no row key: a UUID") from None
    look = state.looks.latest()
    life = row_life(state.instance, look.status, row_key, caller)
    return page(state, caller, "row", f"Row {row_key}", key=str(row_key), life=life, look=look)


@get("/parked", sync_to_thread=True)
def parked(state: ConsoleState, caller: Visitor) -> Template:
    """Cells that triggers could not run."""
    cells = readable_parked(caller, ParkedCells(state.instance.datastore.state).all())
    return page(
        state, caller, "parked", "Parked cells", cells=cells[:PARKED_OF_A_PAGE], count=len(cells)
    )


@get("/cluster", sync_to_thread=True)
def cluster(state: ConsoleState, caller: Visitor) -> Template:
    """Processes, nodes, gateways and backups."""
    caller.check_datastore("describe")
    return page(state, caller, "cluster", "Cluster")


def _start(datastore: Datastore, shard: int, location: str) -> int:
    """The added_id that ``location`` means: a number, or a moment with its zone."""
    text = location.strip() or "0"
    if not text.isdigit() and "-" in text:
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidRequest(
                f"from is {ascii(text)[:40]}: an added_id, or a moment (2026-03-01T12:00:00Z)"
            ) from None
        if at.tzinfo is None:
            raise InvalidRequest(f"{text} has no time zone: end it with Z for UTC")
        return datastore.engine.locate(shard, microseconds(at))
    return check_number("from", text)


PAGES: Final = [stuck_parts, log, row, parked, cluster]
