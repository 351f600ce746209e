"""Places that a group never handles, by its start and its history: a function of values."""

from __future__ import annotations

from collections.abc import Sequence

from cellfeed.bridge.groups.history import Deed
from cellfeed.bridge.triggers.parked.cell import ParkedCell
from cellfeed.store.cells.token import Places
from cellfeed.store.waits.waiting import PlaceRange


def skipped_places(
    places: Sequence[Places], starts: Sequence[int], deeds: Sequence[Deed]
) -> list[PlaceRange]:
    """The parts of ``places`` that the group was begun behind, or moved past. ``starts`` by shard;
    ``deeds``, the earliest first. A group that was moved back reaches all from there on again."""
    return [
        PlaceRange(each.shard, max(first, each.first), min(end - 1, each.last))
        for each in places
        for first, end in _left_out(each.shard, starts, deeds)
        if first <= each.last and each.first < end
    ]


def reached_again(cell: ParkedCell, deeds: Sequence[Deed]) -> bool:
    """Whether the group was moved back to a cell, or to before it, since that was parked."""
    return any(
        deed.after.get(cell.partition, cell.added_id + 1) <= cell.added_id
        and deed.at_us > cell.parked_at_us
        for deed in deeds
    )


def _left_out(shard: int, starts: Sequence[int], deeds: Sequence[Deed]) -> list[tuple[int, int]]:
    """Of one shard the ranges, each with its end excluded."""
    start = starts[shard] if shard < len(starts) else 0
    ranges = [(0, start)]
    for deed in deeds:
        if shard not in deed.after:
            continue
        location = deed.after[shard]
        before = deed.before.get(shard)
        # Where nobody knew how far it was, nothing from its start on counts as handled.
        came_to = start if before is None else before
        ranges = [(first, min(end, location)) for first, end in ranges if first < location]
        if came_to < location:
            ranges.append((came_to, location))
    return [(first, end) for first, end in ranges if first < end]
