"""Why a trigger, and each of its shards, is where it is: from its state as read at one moment. Pure
functions, and words for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.groups.control import Pause, when
from cellfeed.bridge.groups.progress_records import (
    NOT_STARTED,
    REPORT_AGAIN_S,
    Left,
    WorkerRecord,
)
from cellfeed.bridge.triggers.circuit import PAUSES
from cellfeed.bridge.triggers.offsets.lineage import choices

NOBODY: Final = ""

_SILENT_S: Final = 4 * REPORT_AGAIN_S
"""A live worker reports more often than that; one that does not hangs."""


class GroupSnapshot(msgspec.Struct, frozen=True):
    """The state of one group, as read. ``members`` are alive; ``owners`` and ``assigned`` by shard,
    whether alive or not. ``waits_because``: why all of it stands still; ``away_because``: why the
    coordination could not be asked."""

    now_us: int
    pause: Pause | None
    waits_because: str
    records: Mapping[str, WorkerRecord]
    left: Left | None
    members: list[str]
    owners: Mapping[int, str]
    assigned: Mapping[int, str]
    away_because: str = ""
    start_with: str = "cellfeed triggers run"
    """The command that starts a worker of the group."""


def waits_because(group: str, pause: Pause | None, lost: str | None, stopped: str | None) -> str:
    """Why all of a group stands still, and the remedy; empty when it does not."""
    if pause is not None:
        return str(pause)
    if lost is not None:
        return f"stands still: {lost}; {choices(group)}"
    return f"stopped: {stopped}; resume it: cellfeed parked resume {group}" if stopped else ""


def pauses(snapshot: GroupSnapshot) -> str:
    """Which live workers pause because many cells fail alike, and why; empty where none does."""
    said = {
        member: record.stands_still
        for member in workers(snapshot)
        if (record := snapshot.records.get(member)) and record.stands_still.startswith(PAUSES)
    }
    return "; ".join(f"{member} {because}" for member, because in sorted(said.items()))


def workers(snapshot: GroupSnapshot) -> list[str]:
    """Members that work: those that reset are none."""
    return [
        member
        for member in snapshot.members
        if snapshot.pause is None or member != snapshot.pause.member
    ]


def reason(
    shard: int, snapshot: GroupSnapshot, saved: CommittedOffset | None, *, idle: bool
) -> tuple[int, str]:
    """When the shard last got on (microseconds since 1970 UTC, 0 for never), and why it is where it
    is. ``idle``: it is not behind."""
    owner = snapshot.owners.get(shard, NOBODY)
    record = snapshot.records.get(owner)
    place = record.shards.get(shard) if record else None
    progress_us = max(
        saved.committed_at_us if saved else 0, place.progress_s * 1_000_000 if place else 0
    )
    if owner not in snapshot.members:
        return progress_us, snapshot.waits_because or snapshot.away_because or _no_worker(
            shard, owner, record, snapshot
        )
    if snapshot.waits_because and snapshot.pause is None:
        return progress_us, snapshot.waits_because
    said = _said(shard, owner, record, snapshot.now_us, idle=idle)
    return (
        progress_us,
        (
            f"{snapshot.waits_because}; {owner} has not ended its cell: {said}"
            if snapshot.pause is not None
            else said
        ),
    )


def _said(shard: int, owner: str, record: WorkerRecord | None, now_us: int, *, idle: bool) -> str:
    """The owner's report, and its age when it is too old."""
    if record is None or shard not in record.shards:
        return f"{owner} has it and has not reported it yet"
    said = record.stands_still or record.reason(shard)
    if said == NOT_STARTED:
        said = (
            "nothing has come since its worker took it"
            if idle
            else f"{owner} has it and has not begun: its threads are busy with other shards"
        )
    if now_us - record.at_us > _SILENT_S * 1e6:
        return f"{owner} has said nothing since {when(record.at_us)}, then: {said}"
    return said


def _no_worker(shard: int, owner: str, record: WorkerRecord | None, snapshot: GroupSnapshot) -> str:
    if owner:
        since = f" since {when(record.at_us)} at the latest" if record else ""
        return (
            f"no worker has it{since}: {owner} is gone without a word, others take it when its"
            " lease has run out"
        )
    present = workers(snapshot)
    if (assigned := snapshot.assigned.get(shard, NOBODY)) in present:
        found = f"no worker has it just now: {assigned} is to take it"
        return _and(found, takes_nothing([assigned], snapshot))
    if present:
        found = (
            f"no worker has it just now: it is being assigned to one of {', '.join(present[:5])}"
        )
        return _and(found, takes_nothing(present, snapshot))
    if snapshot.left is not None:
        return (
            f"no worker has it since {when(snapshot.left.at_us)}, when {snapshot.left.member} left"
            f" as the last one: start one with {snapshot.start_with}"
        )
    return f"no worker has ever had it: start one with {snapshot.start_with}"


def takes_nothing(members: Sequence[str], snapshot: GroupSnapshot) -> str:
    """Of these members the first that reports why it cannot take shards, or assign them."""
    for member in members:
        record = snapshot.records.get(member)
        if record is not None and record.takes_nothing:
            return f"{member} takes and assigns no shards: {record.takes_nothing}"
    return ""


def _and(one: str, other: str) -> str:
    return f"{one}; {other}" if other else one
