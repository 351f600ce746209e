"""A row's life: all its cells, and the places to which each has come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from cellfeed.assembly.datastore import Opened
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.console.sight import readable
from cellfeed.status.group_words import named
from cellfeed.status.instance_status import InstanceStatus
from cellfeed.store.cells.cell import Cell
from cellfeed.store.cells.from_stored import cell_from_stored
from cellfeed.store.cells.token import Places
from cellfeed.store.security.callers import TRUSTED, Caller

CELLS_SHOWN_MAX: Final = 500
"""Cells of a row that one page shows, the earliest first."""


class Stop(NamedTuple):
    """A place to which a cell comes. ``passed``: it was there; None where nobody knows.
    ``remark``: such as ``parked``."""

    kind: str
    name: str
    passed: bool | None
    remark: str = ""


class CellLife(NamedTuple):
    """A cell with its stops, in the order of their names."""

    cell: Cell
    stops: list[Stop]


class RowLife(NamedTuple):
    """``more``: the row has more cells than are shown."""

    cells: list[CellLife]
    more: bool


def row_life(
    instance: Opened, found: InstanceStatus, row_key: UUID, caller: Caller = TRUSTED
) -> RowLife:
    """The cells of ``row_key`` with the stops of each: the cells that ``caller`` may read, and the
    groups that it may know. Raises Unavailable, DataDamaged."""
    datastore = instance.datastore
    shard = datastore.shard_of(row_key)
    stored = datastore.engine.row_cells(row_key.bytes, limit=CELLS_SHOWN_MAX)
    cells = readable(caller, [cell_from_stored(shard, each) for each in stored])
    if not cells:
        return RowLife([], more=False)
    places = [Places(shard, cells[0].added_id, cells[-1].added_id)]
    passed = {
        stop: location
        for stop, location in _locations(instance, found, shard).items()
        if caller.sees_group(stop[2])
    }
    parked: dict[tuple[str, int], str] = {}
    queue = ParkedCells(datastore.state)
    for kind, name, group in passed:
        if kind in ("trigger", "export", "index"):
            for word in ("parked", "skipped"):
                for each in queue.within(group, datastore.name, places, word):
                    parked[name, each.added_id] = word
    return RowLife(
        [
            CellLife(
                cell,
                [
                    Stop(
                        kind,
                        name,
                        None if location is None else cell.added_id < location,
                        parked.get((name, cell.added_id), ""),
                    )
                    for (kind, name, _), location in sorted(passed.items())
                ],
            )
            for cell in cells
        ],
        more=len(stored) == CELLS_SHOWN_MAX,
    )


def _locations(
    instance: Opened, found: InstanceStatus, shard: int
) -> Mapping[tuple[str, str, str], int | None]:
    """By (kind, name, group) the next added_id of each reader of the shard."""
    passed: dict[tuple[str, str, str], int | None] = {}
    known = set()
    for lag in (*found.triggers, *found.exports):
        kind, name, _ = named(lag.group)
        passed[kind, name, lag.group] = next(
            (each.offset or 0 for each in lag.shards if each.shard == shard), None
        )
        known.add(lag.group)
    topic = instance.datastore.name
    for group in {each.group for each in found.groups} - known:
        offset = instance.coordinator.fetch_offsets(group).get((topic, shard))
        passed["group", group, group] = offset.offset if offset is not None else None
    return passed
