"""The readers that still need cells of a shard's log: every group that is known here, with the
first cell that it still needs.

    triggers, indexes   the next cell to run, and the first that is parked: it is read from the log
                        when it is tried again. A group without an offset on a shard
                        begins where its start was settled; where its offsets were lost, those that
                        its workers kept in the datastore count
    exports             the next cell to export, as they last saved it: never ahead of their
                        partitions
    consumer groups     offsets committed through a gateway, of every topic: those per column,
                        of views and ``@latest`` have the offsets of the full log.
                        Where a coordination is shared with other datastores, the offsets of these
                        count as well: this function cannot see whose they are

Readers that are no group are not known: Kafka clients that keep their own offsets, readers by HTTP.
They get an error when they read below the start of the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.export.export_terms import read_terms
from cellfeed.bridge.groups.control import EXPORTS, PREFIX, by_group
from cellfeed.bridge.groups.start import recorded_start
from cellfeed.bridge.triggers.offsets.kept_offsets import last_known
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.datastore import Datastore


class Need(NamedTuple):
    """A group that still needs a shard's log from ``location`` on, and why."""

    group: str
    shard: int
    location: int
    because: str

    def __str__(self) -> str:
        return f"group {self.group} {self.because} {self.shard}:{self.location}"


class Needs:
    """The needs found at one look. ``groups``: all that are known, whether they need anything or
    not."""

    def __init__(self, groups: Sequence[str], needs: Sequence[Need]) -> None:
        self.groups = sorted(groups)
        self._by_shard: dict[int, list[Need]] = {}
        for need in needs:
            self._by_shard.setdefault(need.shard, []).append(need)

    def below(self, shard: int, location: int) -> list[Need]:
        """Those of a shard that need a cell below a location, the furthest behind first."""
        return sorted(
            (need for need in self._by_shard.get(shard, ()) if need.location < location),
            key=lambda need: (need.location, need.group),
        )


def needs(datastore: Datastore, coordinator: Coordinator) -> Needs:
    """Looks at every group. Raises Unavailable when one cannot be asked: unknown needs count as
    needs."""
    name, state = datastore.name, datastore.state
    found: list[Need] = []
    indexes = {version.group for version in datastore.indexes.kept_versions()}
    workers = set(by_group(state.list(PREFIX))) | indexes
    known = workers | set(coordinator.groups())
    for group in known:
        at = _committed(coordinator, group, datastore.shards)
        if group in workers:
            begun = _begun(datastore, group) | last_known(
                state, group, name, range(datastore.shards)
            )
            if group in indexes:
                begun = dict.fromkeys(range(datastore.shards), 0) | begun
            at = {shard: (location, name) for shard, location in begun.items()} | at
        found += [
            Need(group, shard, location, f"has come, in topic {topic}, to")
            for shard, (location, topic) in at.items()
        ]
    parked: dict[tuple[str, int], int] = {}
    for cell in ParkedCells(state).all():
        if cell.topic == name:
            parked.setdefault((cell.group, cell.partition), cell.added_id)
    found += [
        Need(group, shard, added_id, "has a parked cell at")
        for (group, shard), added_id in parked.items()
    ]
    return Needs([*known, *(group for group, _ in parked)], found)


def _committed(coordinator: Coordinator, group: str, shards: int) -> dict[int, tuple[int, str]]:
    """By shard, the lowest offset of any topic, and the topic."""
    at: dict[int, tuple[int, str]] = {}
    for (topic, shard), committed in coordinator.fetch_offsets(group).items():
        if shard < shards:
            at[shard] = min(at.get(shard, (committed.offset, topic)), (committed.offset, topic))
    return at


def _begun(datastore: Datastore, group: str) -> dict[int, int]:
    """By shard, where the group was settled to begin."""
    if group.startswith(EXPORTS):
        agreed = read_terms(datastore, group.removeprefix(EXPORTS))
        return dict(enumerate(agreed.starts)) if agreed is not None else {}
    return dict(enumerate(recorded_start(datastore.state, group, datastore.name) or []))
