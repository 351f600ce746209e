"""How many records of a topic a group has not had: of a view that leaves cells out, fewer than the
ids between its offset and the end of the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cellfeed.bridge.events.views import View, ViewReader
from cellfeed.bridge.gateway.topics.topics import LATEST
from cellfeed.config.model import DatastoreConfig
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import Trimmed
from cellfeed.store.limits import SCAN_CELLS_MAX

CELLS_MAX: Final = 50_000
"""Cells that are looked at for one group and topic: about a second. Behind them ids are counted."""

_SCAN_CELLS: Final = min(2_000, SCAN_CELLS_MAX)


def view_of(config: DatastoreConfig, topic: str) -> View:
    """The view that a topic of the gateways shows; the whole log for one that is not known."""
    name = topic.removesuffix(LATEST)
    for declared in config.topics:
        if declared.name == name:
            return declared.view
    column = name.removeprefix(f"{config.name}.")
    return View() if column == name else View(column)


def records_behind(
    datastore: Datastore, view: View, behind: Mapping[int, range]
) -> tuple[int, bool]:
    """Records of ``view`` among the ids ``behind``, by shard; and whether there may be fewer, for
    more than ``CELLS_MAX`` cells would have to be looked at. Raises Unavailable, DataDamaged."""
    if view.shows_all:
        return sum(map(len, behind.values())), False
    reader, records, left = ViewReader(view), 0, CELLS_MAX
    for shard, ids in behind.items():
        location = ids.start
        while location < ids.stop:
            if left <= 0:
                records += ids.stop - location
                break
            try:
                found = datastore.engine.scan(shard, location, min(_SCAN_CELLS, left))
            except Trimmed:
                break  # since the heads were looked at: these cells are nobody's lag any more
            cells = [cell for cell in found if cell.added_id < ids.stop]
            records += len(reader.read(cells)[0])
            left -= len(found)
            if not cells:
                break
            location = cells[-1].added_id + 1
    return records, left <= 0
