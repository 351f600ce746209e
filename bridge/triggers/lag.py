"""How far a trigger is behind, exactly, and why each of its shards is where it is.

**Cells behind**: those of the shard's log from the group's offset to the watermark, of whatever column, because the trigger has to come past all of them. A
worker saves its offset behind cells of other columns too, so an idle trigger is 0 cells behind. **Seconds behind**: the age of the first of those cells by the
storage's clock, 0 without one.

Both come from offsets and heads alone. What the workers tell (``progress_records.py``) only says why; what they cannot tell, because they wait for it
themselves or are gone, is read where it stands: a pause, a stop, lost offsets, a shard without a worker. So every shard has a reason.

One look costs one listing of the heads, of the group's offsets, its claims, its members and of what is kept of it in the state table, whatever the number of
shards; and the reading of one cell for each shard that is behind, many in one round trip. A cell that was read is remembered as long as the offset stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

import msgspec

from bridge.coordination.contract import CommittedOffset, Coordinator
from bridge.triggers.control import PREFIX, Hold, by_group, group_prefix, when
from bridge.triggers.foothold import Footholds, choices, lost_offsets
from bridge.triggers.parked import ParkedCells
from bridge.triggers.place import NOT_STARTED
from bridge.triggers.progress_records import About, Left, WorkerRecord, worker_record
from bridge.triggers.start import settled_start
from store.datastore import Datastore
from store.engines.contract import LogRange, StateEntry

_NOBODY: Final = ""

_CELLS_IN_A_READ: Final = 64
"""Each comes with its body."""


class ShardLag(msgspec.Struct, frozen=True):
    """One shard. ``offset`` is None when the group has not begun on it. ``seconds``: None where the first cell was not looked at. ``progress_us``: when it last
    got on, microseconds since 1970 UTC, 0 for never."""

    shard: int
    offset: int | None
    watermark: int
    cells: int
    seconds: float | None
    owner: str
    progress_us: int
    because: str


class GroupLag(msgspec.Struct, frozen=True):
    """A trigger. ``waits_because``: why all of it stands still; empty when nothing keeps it. ``about``: as its workers last said."""

    group: str
    topic: str
    cells: int
    seconds: float
    parked: int
    workers: list[str]
    waits_because: str
    shards: list[ShardLag]
    about: About | None = None

    @property
    def without_worker(self) -> int:
        """Shards that no live worker has."""
        return sum(not each.owner for each in self.shards)


class _Told(msgspec.Struct, frozen=True):
    """What was read of one group at one moment."""

    now_us: int
    hold: Hold | None
    records: Mapping[str, WorkerRecord]
    left: Left | None
    members: list[str]
    owners: Mapping[int, str]
    assigned: Mapping[int, str]


class LagReader:
    """Looks at the groups of one datastore. Used by one thread at a time."""

    def __init__(self, datastore: Datastore, coordinator: Coordinator) -> None:
        self._datastore = datastore
        self._coordinator = coordinator
        self._parked = ParkedCells(datastore.state)
        self._seen: dict[tuple[str, int], tuple[int, int]] = {}
        """When the first cell behind an offset was written: (group, shard) to (offset, microseconds)."""

    def groups(self) -> list[str]:
        """Triggers that have ever run, by name."""
        return sorted(by_group(self._datastore.state.list(PREFIX)))

    def read(self, group: str, *, looks_max: int | None = None) -> GroupLag:
        """The group as it stands. ``looks_max``: at most so many cells are read for their age, of the shards whose offset has stood for longest.

        Raises Unavailable.
        """
        state, topic = self._datastore.state, self._datastore.name
        heads = self._datastore.heads()
        # After the heads, so that what is done meanwhile makes the lag smaller, never larger than it was.
        committed = {shard: each for (name, shard), each in self._coordinator.fetch_offsets(group).items() if name == topic}
        lost = lost_offsets(state, self._coordinator, group, topic, [(topic, shard) for shard in committed])
        saved = {shard: each.offset for shard, each in committed.items()}
        offsets = saved if self._coordinator.keeps_in_store else Footholds(state, group, topic).goes_on(saved)
        stopped = self._parked.stopped_because(group)
        entries = {entry.key.removeprefix(group_prefix(group)): entry for entry in state.list(group_prefix(group))}
        told = self._told(group, topic, entries)
        waits = _waits_because(group, told.hold, lost, stopped)
        starts = settled_start(state, group, topic) or [0] * len(heads)
        first = {shard: max(offsets.get(shard, starts[shard]), head.log_start) for shard, head in heads.items()}
        behind = {shard: max(0, head.watermark - first[shard]) for shard, head in heads.items()}
        ages = self._seconds(group, told.now_us, {shard: first[shard] for shard, cells in behind.items() if cells}, committed, looks_max)
        shards = []
        for shard, head in heads.items():
            progress_us, because = _reason(shard, told, committed.get(shard), waits)
            if because == NOT_STARTED and not behind[shard]:
                because = "nothing has come since its worker took it"
            owner = told.owners.get(shard, _NOBODY)
            seconds = ages.get(shard) if behind[shard] else 0.0
            live = owner if owner in told.members else _NOBODY
            shards.append(ShardLag(shard, offsets.get(shard), head.watermark, behind[shard], seconds, live, progress_us, because))
        about = msgspec.json.decode(entries["about"].value, type=About) if "about" in entries else None
        return GroupLag(group, topic, sum(behind.values()), max(ages.values(), default=0.0), self._parked.count(group), _workers(told), waits, shards, about)

    def _told(self, group: str, topic: str, entries: Mapping[str, StateEntry]) -> _Told:
        members = self._coordinator.members(group)
        hold = None
        if "paused" in entries:
            hold = msgspec.json.decode(entries["paused"].value, type=Hold)
        elif "reset" in entries:
            reset = msgspec.json.decode(entries["reset"].value, type=Hold)
            hold = reset if reset.member in members else None
        records = {unquote(key.removeprefix("workers/")): worker_record(each) for key, each in entries.items() if key.startswith("workers/")}
        left = msgspec.json.decode(entries["left"].value, type=Left) if "left" in entries else None
        owners, assigned = self._coordinator.owners(group, topic), self._coordinator.assignment(group)
        return _Told(self._datastore.state.now_us(), hold, records, left, members, owners, assigned)

    def _seconds(self, group: str, now_us: int, first: Mapping[int, int], committed: Mapping[int, CommittedOffset], looks_max: int | None) -> dict[int, float]:
        """The age of the first cell behind, of the shards that have one."""
        ages: dict[int, float] = {}
        unknown = []
        for shard, offset in first.items():
            seen = self._seen.get((group, shard))
            if seen is not None and seen[0] == offset:
                ages[shard] = max(0.0, (now_us - seen[1]) / 1e6)
            else:
                unknown.append(shard)
        unknown.sort(key=lambda shard: committed[shard].committed_at_us if shard in committed else 0)
        unknown = unknown[:looks_max]
        for start in range(0, len(unknown), _CELLS_IN_A_READ):
            some = unknown[start : start + _CELLS_IN_A_READ]
            for shard, cells in zip(some, self._datastore.engine.scan_many([LogRange(shard, first[shard], 1) for shard in some]), strict=True):
                for cell in cells:
                    self._seen[(group, shard)] = first[shard], cell.created_at_us
                    ages[shard] = max(0.0, (now_us - cell.created_at_us) / 1e6)
        return ages


def _waits_because(group: str, hold: Hold | None, lost: str | None, stopped: str | None) -> str:
    if hold is not None:
        return str(hold)
    if lost is not None:
        return f"stands still: {lost}; {choices(group)}"
    return f"stopped: {stopped}; go on with: cellfeed parked resume {group}" if stopped else ""


def _workers(told: _Told) -> list[str]:
    """Members that work: those that reset are none."""
    return [member for member in told.members if told.hold is None or member != told.hold.member]


def _reason(shard: int, told: _Told, committed: CommittedOffset | None, waits: str) -> tuple[int, str]:
    """When the shard last got on, and why it is where it is."""
    saved_us = committed.committed_at_us if committed else 0
    owner = told.owners.get(shard, _NOBODY)
    record = told.records.get(owner)
    place = record.shards.get(shard) if record else None
    progress_us = max(saved_us, place.progress_s * 1_000_000 if place else 0)
    if owner in told.members:
        if record is None or place is None:
            said = f"{owner} has it and has not told of it yet"
        else:
            said = record.reason(shard)
            if record.stands_still and not waits:
                said = record.stands_still
        return progress_us, f"{waits}; {owner} has not ended its cell: {said}" if waits and told.hold is not None else waits or said
    return progress_us, waits or _no_worker(shard, owner, record, told)


def _no_worker(shard: int, owner: str, record: WorkerRecord | None, told: _Told) -> str:
    if owner:
        since = f" since {when(record.at_us)} at the latest" if record else ""
        return f"no worker has it{since}: {owner} is gone without a word, others take it when its lease has run out"
    if (assigned := told.assigned.get(shard, _NOBODY)) in told.members:
        return f"no worker has it just now: {assigned} is to take it"
    if told.members:
        return f"no worker has it just now: it is being assigned to one of {', '.join(told.members[:5])}"
    if told.left is not None:
        return f"no worker has it since {when(told.left.at_us)}, when {told.left.member} left as the last one: start one with cellfeed triggers run"
    return "no worker has ever had it: start one with cellfeed triggers run"
