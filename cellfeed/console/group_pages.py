"""The pages of groups: all of them, one shard by shard, and the preview of a reset."""

from __future__ import annotations

from typing import Final

from litestar import get
from litestar.response import Template

from cellfeed.bridge.groups.history import history
from cellfeed.bridge.triggers.operate.lag import LagReader
from cellfeed.bridge.triggers.operate.locations import FORMS, offsets_by_shard, wanted_locations
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.console.door import Visitor
from cellfeed.console.frame import AnyRequest, ConsoleState, asked, page
from cellfeed.console.plot import plot
from cellfeed.status.group_words import named
from cellfeed.store.errors import NotFound

SHARDS_OF_A_PAGE: Final = 200
"""Shards of a group in one page, those that are most behind first."""

AGES_OF_A_PAGE: Final = 64
"""Cells that a page reads for their age: of the shards whose offset has stood for longest."""

HISTORY_OF_A_PAGE: Final = 20


@get("/groups", sync_to_thread=True)
def groups(state: ConsoleState, caller: Visitor) -> Template:
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
        if caller.sees_group(lag.group)
    ]
    known = {lag.group for lag in (*look.status.triggers, *look.status.exports)}
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
        if lag.group not in known and caller.sees_group(lag.group)
    ]
    return page(state, caller, "groups", "Groups", rows=rows, look=look)


@get("/groups/{group:path}", sync_to_thread=True)
def group_shards(request: AnyRequest, state: ConsoleState, caller: Visitor) -> Template:
    """One group, shard by shard, with the changes that people made to it."""
    name = str(request.path_params["group"]).lstrip("/")
    reader = LagReader(state.instance.datastore, state.instance.coordinator)
    if name not in {*reader.groups(), *reader.exports()} or not caller.sees_group(name):
        raise NotFound(f"there is no group {name!r}")
    lag = reader.read(name, looks_max=AGES_OF_A_PAGE)
    shards = sorted(lag.shards, key=lambda each: (-each.cells, each.shard))
    kind, shown, verb = named(name)
    return page(
        state,
        caller,
        "group",
        f"{kind} {shown}",
        lag=lag,
        kind=kind,
        name=shown,
        controls=bool(verb) and caller.may_group("operate", name),
        forms=FORMS,
        shards=shards[:SHARDS_OF_A_PAGE],
        more=max(0, len(shards) - SHARDS_OF_A_PAGE),
        plot=plot(state.looks.lags(name)),
        deeds=history(state.instance.datastore.state, name)[-HISTORY_OF_A_PAGE:][::-1],
    )


@get("/groups/reset/preview", sync_to_thread=True)
def reset_preview(request: AnyRequest, state: ConsoleState, caller: Visitor) -> Template:
    """The cells that a reset would run again, and those that it would pass over."""
    group, to = asked(request, "group"), asked(request, "to")
    caller.check_group("operate", group)
    datastore, coordinator = state.instance.datastore, state.instance.coordinator
    if group not in LagReader(datastore, coordinator).groups():
        raise NotFound(f"there is no trigger {group!r}")
    locations = wanted_locations(to, group, datastore, coordinator)
    offsets, heads = offsets_by_shard(coordinator, datastore, group), datastore.heads()
    moves = []
    for shard, location in sorted(locations.items()):
        now = offsets[shard]
        before = heads[shard].log_start if now is None else now
        moves.append((shard, now, location, max(0, before - location), max(0, location - before)))
    unparked = ParkedCells(datastore.state).come_to_again(group, datastore.name, locations)
    return page(
        state,
        caller,
        "reset",
        f"Reset {group}",
        group=group,
        to=to,
        moves=sorted(moves, key=lambda each: -each[3])[:SHARDS_OF_A_PAGE],
        shards=len(moves),
        again=sum(each[3] for each in moves),
        over=sum(each[4] for each in moves),
        unparked=len(unparked),
        exactly=",".join(f"{shard}:{location}" for shard, location in sorted(locations.items())),
    )


GROUP_PAGES: Final = [groups, group_shards, reset_preview]
