"""Which groups there are: a name with a slip in it is an error, never an empty answer."""

from __future__ import annotations

from cellfeed.assembly.datastore import Opened
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.groups.definition import defined_groups
from cellfeed.bridge.groups.history import groups_with_history
from cellfeed.bridge.triggers.operate.lag import LagReader
from cellfeed.bridge.triggers.operate.renamed import has_begun, renamed
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.errors import NotFound


def must_exist(group: str, instance: Opened, *, done_by_hand: bool = False) -> None:
    """Raises NotFound for an unknown group, with the names of the known ones: triggers, exports,
    indexes and consumer groups. ``done_by_hand``: a group counts that has nothing but its history
    left."""
    state, reader = instance.datastore.state, LagReader(instance.datastore, instance.coordinator)
    known = {*reader.groups(), *reader.exports(), *ParkedCells(state).groups()}
    known |= defined_groups(state)
    # Those that worked while the coordination was in the store.
    known |= set(StoreCoordinator(state).groups())
    if done_by_hand:
        known |= groups_with_history(state)
    if group in known or has_begun(state, group):
        return  # this needs no reachable coordination
    known |= set(instance.coordinator.groups())
    if group not in known:
        note = renamed(state, group)
        moved = f"; it is {note.to!r} now" if note is not None else ""
        raise NotFound(
            f"no trigger {group!r} has ever run here{moved}; there are"
            f" {', '.join(sorted(known)) or 'none'}"
        )
