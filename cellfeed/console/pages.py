"""The pages that show: none of them changes anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final
from uuid import UUID

from litestar import get
from litestar.datastructures import State
from litestar.params import Parameter
from litestar.response import Template
from prometheus_client import CollectorRegistry

from cellfeed.assembly.datastore import Opened
from cellfeed.bridge.groups.history import history
from cellfeed.bridge.triggers.operate.lag import LagReader
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.console.life import row_life
from cellfeed.console.plot import plot
from cellfeed.status.group_words import named
from cellfeed.status.looks import Looks
from cellfeed.status.newest import newest_cells
from cellfeed.store.cells.cell import Cell
from cellfeed.store.cells.sharding import check_shard
from cellfeed.store.errors import InvalidRequest, NotFound
from cellfeed.store.http.server.worker import StopSignal

CELLS_OF_A_PAGE: Final = 50
SHARDS_OF_A_PAGE: Final = 200
"""Shards of a group in one page, those that are most behind first."""

HISTORY_OF_A_PAGE: Final = 20


@dataclass
class Streams:
    """The number of open pages that follow changes; the event loop alone counts them."""

    count: int = 0


class ConsoleState(State):
    """The state that all pages share. Set once, before the first request."""

    instance: Opened
    looks: Looks
    registry: CollectorRegistry
    stop: StopSignal
    streams: Streams


def page(state: ConsoleState, template: str, title: str, **context: Any) -> Template:
    """A page with the frame that all have."""
    look = context.pop("look", None) or state.looks.latest()
    return Template(
        f"{template}.html",
        context={
            "title": title,
            "datastore": state.instance.datastore.name,
            "look": look,
            "standing": len(look.standing),
            **context,
        },
    )


@get("/", sync_to_thread=True)
def stuck_parts(state: ConsoleState) -> Template:
    """The parts that stand still."""
    return page(state, "stuck", "Stuck")


@get("/groups", sync_to_thread=True)
def groups(state: ConsoleState) -> Template:
    """Every group with its lag."""
    look = state.looks.latest()
    rows = [
        {
            "kind": named(lag.group)[0],
            "name": named(lag.group)[1],
            "group": lag.group,
            "topic": lag.topic,
            "workers": len(lag.workers),
            "behind": lag.cells,
            "seconds": lag.seconds,
            "parked": lag.parked,
            "because": lag.waits_because or lag.takes_nothing,
            "plot": plot(state.looks.lags(lag.group)),
        }
        for lag in (*look.status.triggers, *look.status.exports)
    ]
    known = {row["group"] for row in rows}
    rows += [
        {
            "kind": "consumers",
            "name": lag.group,
            "group": "",
            "topic": lag.topic,
            "workers": None,
            "behind": lag.behind,
            "seconds": None,
            "parked": lag.parked,
            "because": lag.stopped_because or "",
            "plot": plot(state.looks.lags(lag.group)),
        }
        for lag in look.status.groups
        if lag.group not in known
    ]
    return page(state, "groups", "Groups", rows=rows, look=look)


@get("/groups/{group:path}", sync_to_thread=True)
def group_shards(state: ConsoleState, group: str) -> Template:
    """One group, shard by shard, with the changes that people made to it."""
    name = group.lstrip("/")
    reader = LagReader(state.instance.datastore, state.instance.coordinator)
    if name not in {*reader.groups(), *reader.exports()}:
        raise NotFound(f"there is no group {name!r}")
    lag = reader.read(name)
    shards = sorted(lag.shards, key=lambda each: (-each.cells, each.shard))
    kind, shown, verb = named(name)
    return page(
        state,
        "group",
        f"{kind} {shown}",
        lag=lag,
        kind=kind,
        name=shown,
        controls=bool(verb),
        shards=shards[:SHARDS_OF_A_PAGE],
        more=max(0, len(shards) - SHARDS_OF_A_PAGE),
        plot=plot(state.looks.lags(name)),
        deeds=history(state.instance.datastore.state, name)[-HISTORY_OF_A_PAGE:][::-1],
    )


@get("/log", sync_to_thread=True)
def log(
    state: ConsoleState,
    shard: Annotated[str, Parameter(query="shard")] = "",
    location: Annotated[str, Parameter(query="from")] = "",
    column: Annotated[str, Parameter(query="column")] = "",
) -> Template:
    """The newest cells of all shards; or those of one from an added_id on."""
    datastore = state.instance.datastore
    heads, column = datastore.heads(), column.strip()
    if not shard.strip():
        cells = newest_cells(datastore, heads, CELLS_OF_A_PAGE, column or None)[::-1]
        return page(state, "log", "Log", cells=cells, shard="", column=column, following=None)
    number = _number("shard", shard)
    check_shard(number, datastore.shards)
    head = heads[number]
    start = max(_number("from", location or "0"), head.log_start)
    shown: list[Cell] = []
    while start < head.watermark and len(shown) < CELLS_OF_A_PAGE:
        piece = datastore.get_cells_for_shard(number, start, CELLS_OF_A_PAGE)
        if not piece.cells:
            break
        for cell in piece.cells:
            start = cell.added_id + 1
            if not column or cell.column_name == column:
                shown.append(cell)
            if len(shown) == CELLS_OF_A_PAGE:
                break
    return page(
        state,
        "log",
        f"Log of shard {number}",
        cells=shown,
        shard=number,
        column=column,
        head=head,
        following=start if start < head.watermark else None,
    )


@get("/row", sync_to_thread=True)
def row(state: ConsoleState, key: Annotated[str, Parameter(query="key")] = "") -> Template:
    """A row's life."""
    if not key.strip():
        return page(state, "row", "Row", key="", life=None)
    try:
        row_key = UUID(key.strip())
    except ValueError:
        raise InvalidRequest(f"{ascii(key)[:60]} is no row key: a UUID") from None
    look = state.looks.latest()
    life = row_life(state.instance, look.status, row_key)
    return page(state, "row", f"Row {row_key}", key=str(row_key), life=life, look=look)


@get("/parked", sync_to_thread=True)
def parked(state: ConsoleState) -> Template:
    """Cells that triggers could not run."""
    cells = ParkedCells(state.instance.datastore.state).all()
    return page(state, "parked", "Parked cells", cells=cells[:SHARDS_OF_A_PAGE], count=len(cells))


@get("/cluster", sync_to_thread=True)
def cluster(state: ConsoleState) -> Template:
    """Processes, nodes, gateways and backups."""
    return page(state, "cluster", "Cluster")


def _number(name: str, text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit() and len(text.strip()) <= 18):
        raise InvalidRequest(f"{name} is {ascii(text)[:40]}: a whole number from 0 on")
    return int(text)


PAGES: Final = [stuck_parts, groups, group_shards, log, row, parked, cluster]
