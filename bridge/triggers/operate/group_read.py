"""One read of a trigger's group: its offsets, claims, members and its workers' reports; or, while
the coordination is away, the datastore's part of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from cellfeed.bridge.coordination.contract import CommittedOffset, Coordinator
from cellfeed.bridge.groups.control import EXPORTS, Pause
from cellfeed.bridge.groups.progress_records import (
    REPORT_AGAIN_S,
    Left,
    worker_records,
)
from cellfeed.bridge.triggers.offsets.kept_offsets import KeptOffsets, last_known
from cellfeed.bridge.triggers.offsets.lineage import lost_offsets
from cellfeed.bridge.triggers.operate.reasons import (
    GroupSnapshot,
    waits_because,
)
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import StateEntry

_SILENT_S: Final = 3 * REPORT_AGAIN_S
"""A worker that has reported nothing for so long is not believed to live when the coordination
cannot be asked."""


GroupRead = tuple[Mapping[int, CommittedOffset], Mapping[int, int], GroupSnapshot]
"""The saved offsets by shard, the offsets where each shard continues, and the group's state."""


def read_group(
    datastore: Datastore, coordinator: Coordinator, group: str, entries: Mapping[str, StateEntry]
) -> GroupRead:
    """The group's saved offsets, where each shard continues, and its workers' reports."""
    state, topic = datastore.state, datastore.name
    saved = {
        shard: each
        for (name, shard), each in coordinator.fetch_offsets(group).items()
        if name == topic
    }
    offsets = {shard: each.offset for shard, each in saved.items()}
    if not coordinator.keeps_in_store:
        offsets = KeptOffsets(state, group, topic).continues_at(offsets)
    # An export continues behind its partitions' records: its offsets can be lost and nothing
    # with them.
    lost = (
        None
        if group.startswith(EXPORTS)
        else lost_offsets(state, coordinator, group, topic, [(topic, shard) for shard in saved])
    )
    members, pause = coordinator.members(group), _pause(entries)
    if pause is not None and pause.member and pause.member not in members:
        pause = None
    owners, assigned = coordinator.owners(group, topic), coordinator.assignment(group)
    reason = waits_because(group, pause, lost, ParkedCells(state).stopped_because(group))
    return (
        saved,
        offsets,
        GroupSnapshot(
            state.now_us(),
            pause,
            reason,
            worker_records(entries),
            _left(entries),
            members,
            owners,
            assigned,
            start_with=_run_command(group),
        ),
    )


def read_while_away(
    datastore: Datastore, group: str, entries: Mapping[str, StateEntry], because: str
) -> GroupRead:
    """The same as far as the datastore knows: by the offsets kept there, and the reports of
    workers that have reported lately."""
    state, topic = datastore.state, datastore.name
    now_us, pause, records = state.now_us(), _pause(entries), worker_records(entries)
    snapshot = {
        member: each for member, each in records.items() if now_us - each.at_us < _SILENT_S * 1e6
    }
    offsets = last_known(state, group, topic, range(datastore.shards))
    owners = {}
    for member, record in snapshot.items():
        for shard, each in record.shards.items():
            offsets[shard] = max(offsets.get(shard, 0), each.location)
            owners[shard] = member
    reason = waits_because(group, pause, None, ParkedCells(state).stopped_because(group))
    return (
        {},
        offsets,
        GroupSnapshot(
            now_us,
            pause,
            reason,
            records,
            _left(entries),
            sorted(snapshot),
            owners,
            {},
            because,
            _run_command(group),
        ),
    )


def _run_command(group: str) -> str:
    return (
        f"cellfeed export run {group.removeprefix(EXPORTS)}"
        if group.startswith(EXPORTS)
        else "cellfeed triggers run"
    )


def _pause(entries: Mapping[str, StateEntry]) -> Pause | None:
    found = entries.get("paused") or entries.get("reset")
    return msgspec.json.decode(found.value, type=Pause) if found else None


def _left(entries: Mapping[str, StateEntry]) -> Left | None:
    return msgspec.json.decode(entries["left"].value, type=Left) if "left" in entries else None
