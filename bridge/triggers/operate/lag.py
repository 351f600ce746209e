"""How far a trigger is behind, exactly, and why each of its shards is where it is.

**Cells behind**: those of the shard's log from the group's offset to the watermark, of every
column, because the trigger has to come past all of them. A worker saves its offset behind cells of
other columns too, so an idle trigger is 0 cells behind. **Seconds behind**: the age of the first of
those cells by the storage's clock, 0 without one.

Both come from offsets and heads alone. The workers' reports (``progress_records.py``) only say why.
Reasons that they cannot report, because they wait themselves or are gone, are read from stored
state: a pause, a stop, lost offsets, a shard without a worker. So every shard has a reason.

One look costs five listings for any number of shards: of the heads, and of the group's offsets,
claims, members and state entries. For each shard that is behind it also reads one cell, many in one
round trip. A cell that was read is remembered as long as the offset stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

import msgspec

from cellfeed.bridge.coordination.contract import CommittedOffset, Coordinator
from cellfeed.bridge.groups.control import EXPORTS, PREFIX, by_group, group_prefix
from cellfeed.bridge.groups.progress_records import (
    About,
)
from cellfeed.bridge.groups.start import recorded_start
from cellfeed.bridge.triggers.operate.group_read import read_group, read_while_away
from cellfeed.bridge.triggers.operate.reasons import (
    NOBODY,
    pauses,
    reason,
    takes_nothing,
    workers,
)
from cellfeed.bridge.triggers.operate.renamed import renamed_groups
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import LogRange
from cellfeed.store.errors import Trimmed, Unavailable

_CELLS_IN_A_READ: Final = 64
"""Each comes with its body."""


class ShardLag(msgspec.Struct, frozen=True):
    """One shard. ``offset`` is None when the group has not begun on it. ``seconds``: None where the
    first cell was not looked at. ``progress_us``: when it last got on, microseconds since 1970 UTC,
    0 for never."""

    shard: int
    offset: int | None
    watermark: int
    cells: int
    seconds: float | None
    owner: str
    progress_us: int
    because: str


class GroupLag(msgspec.Struct, frozen=True):
    """A trigger. ``waits_because``: why all of it stands still, or which workers pause because many
    cells fail alike; empty when nothing keeps it.
    ``about``: as its workers last said."""

    group: str
    topic: str
    cells: int
    seconds: float
    parked: int
    workers: list[str]
    waits_because: str
    shards: list[ShardLag]
    about: About | None = None
    takes_nothing: str = ""
    """Why a worker cannot take shards or assign them, while some have no worker."""
    away_because: str = ""
    """Why the coordination could not be asked: then cells behind are at most so many, from the
    knowledge of the datastore and the workers."""

    @property
    def without_worker(self) -> int:
        """Shards that no live worker has."""
        return sum(not each.owner for each in self.shards)


class LagReader:
    """Looks at the groups of one datastore. Used by one thread at a time."""

    def __init__(self, datastore: Datastore, coordinator: Coordinator) -> None:
        self._datastore = datastore
        self._coordinator = coordinator
        self._parked = ParkedCells(datastore.state)
        self._seen: dict[tuple[str, int], tuple[int, int]] = {}
        """When the first cell behind an offset was written: (group, shard) to (offset,
        microseconds)."""

    def groups(self) -> list[str]:
        """Triggers that have ever run, by name."""
        return [group for group in self._all() if not group.startswith(EXPORTS)]

    def exports(self) -> list[str]:
        """The groups of exports that have ever run."""
        return [group for group in self._all() if group.startswith(EXPORTS)]

    def _all(self) -> list[str]:
        """Not those that have another name now: all that is left there is the pause."""
        state = self._datastore.state
        gone = {unquote(name) for name in renamed_groups(state)}
        return sorted(
            group
            for group, entries in by_group(state.list(PREFIX)).items()
            if group not in gone or set(entries) != {"paused"}
        )

    def read(self, group: str, *, looks_max: int | None = None) -> GroupLag:
        """The group as it stands. ``looks_max``: at most so many cells are read for their age, of
        the shards whose offset has stood for longest.

        Raises Unavailable.
        """
        state, topic = self._datastore.state, self._datastore.name
        heads = self._datastore.heads()
        entries = {
            entry.key.removeprefix(group_prefix(group)): entry
            for entry in state.list(group_prefix(group))
        }
        # After the heads, so that work done meanwhile makes the lag smaller, never larger than it
        # was.
        try:
            saved, offsets, snapshot = read_group(
                self._datastore, self._coordinator, group, entries
            )
        except Unavailable as away:
            if self._coordinator.keeps_in_store:
                raise
            saved, offsets, snapshot = read_while_away(
                self._datastore, group, entries, f"the coordination is away: {away}"
            )
        starts = recorded_start(state, group, topic) or [0] * len(heads)
        first = {
            shard: max(offsets.get(shard, starts[shard]), head.log_start)
            for shard, head in heads.items()
        }
        behind = {shard: max(0, head.watermark - first[shard]) for shard, head in heads.items()}
        ages = self._seconds(
            group,
            snapshot.now_us,
            {shard: first[shard] for shard, cells in behind.items() if cells},
            saved,
            looks_max,
        )
        shards = []
        for shard, head in heads.items():
            owner = snapshot.owners.get(shard, NOBODY)
            shards.append(
                ShardLag(
                    shard,
                    offsets.get(shard),
                    head.watermark,
                    behind[shard],
                    ages.get(shard) if behind[shard] else 0.0,
                    owner if owner in snapshot.members else NOBODY,
                    *reason(shard, snapshot, saved.get(shard), idle=not behind[shard]),
                )
            )
        about = (
            msgspec.json.decode(entries["about"].value, type=About) if "about" in entries else None
        )
        seconds = max(ages.values(), default=0.0)
        return GroupLag(
            group,
            topic,
            sum(behind.values()),
            seconds,
            self._parked.count(group),
            workers(snapshot),
            snapshot.waits_because or pauses(snapshot),
            shards,
            about,
            (
                takes_nothing(snapshot.members, snapshot)
                if any(not each.owner for each in shards)
                else ""
            ),
            snapshot.away_because,
        )

    def _seconds(
        self,
        group: str,
        now_us: int,
        first: Mapping[int, int],
        committed: Mapping[int, CommittedOffset],
        looks_max: int | None,
    ) -> dict[int, float]:
        """The age of the first cell behind, of the shards that have one."""
        ages: dict[int, float] = {}
        unknown = []
        for shard, offset in first.items():
            seen = self._seen.get((group, shard))
            if seen is not None and seen[0] == offset:
                ages[shard] = max(0.0, (now_us - seen[1]) / 1e6)
            else:
                unknown.append(shard)
        unknown.sort(
            key=lambda shard: committed[shard].committed_at_us if shard in committed else 0
        )
        unknown = unknown[:looks_max]
        for start in range(0, len(unknown), _CELLS_IN_A_READ):
            some = unknown[start : start + _CELLS_IN_A_READ]
            try:
                read = self._datastore.engine.scan_many(
                    [LogRange(shard, first[shard], 1) for shard in some]
                )
            except Trimmed:
                continue  # since the heads were looked at: the next look finds the new start
            for shard, cells in zip(some, read, strict=True):
                for cell in cells:
                    self._seen[(group, shard)] = first[shard], cell.created_at_us
                    ages[shard] = max(0.0, (now_us - cell.created_at_us) / 1e6)
        return ages
