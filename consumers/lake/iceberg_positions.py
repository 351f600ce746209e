"""How far an Iceberg table is, read from its snapshots.

Each commit of a loader has the vector in its snapshot's summary, and in a property of the table.
Foreign snapshots (a compaction, deletes) have none: the vector is that of the nearest ancestor with
one. A table that was rolled back thus has the positions of its rows.

When an expiry has removed that ancestor, the property alone is left. It does not show that the
present rows descend from the snapshot that wrote it. So it is compared with the rows: of each shard
the highest added_id is the one before the position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pyiceberg.table.snapshots import Snapshot

from cellfeed.consumers.lake.positions import Position, Positions, decode_positions
from cellfeed.store.errors import ProtectData

POSITIONS: Final = "cellfeed.positions"
SOURCE: Final = "cellfeed.source"
NEWEST: Final = "cellfeed.newest-created-at-us"


def loader_snapshot(
    head: Snapshot | None, by_id: Callable[[int], Snapshot | None]
) -> Snapshot | None:
    """The nearest snapshot with positions: ``head`` or an ancestor that the table still has."""
    snapshot = head
    while snapshot is not None and summary_of(snapshot).get(POSITIONS) is None:
        parent = snapshot.parent_snapshot_id
        snapshot = by_id(parent) if parent is not None else None
    return snapshot


def summary_of(snapshot: Snapshot) -> Mapping[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary is not None else {}


def read_positions(
    name: str,
    head: Snapshot | None,
    by_id: Callable[[int], Snapshot | None],
    noted: str | None,
    next_ids: Callable[[], Mapping[int, int]],
    *,
    has_every_id: bool = True,
) -> Positions:
    """``noted``: the table's property; ``next_ids``: reads of every shard's rows the highest
    added_id, plus one. Raises ProtectData when nothing proves the positions.

    A table without every id has no such proof. Its position is the one behind its last row then:
    the rows from there are read from the table of all cells again.
    """
    if head is None and noted is None:
        return {}
    found = loader_snapshot(head, by_id)
    if found is not None:
        return decode_positions(summary_of(found)[POSITIONS], name)
    if not has_every_id:
        return {shard: Position(next_id, next_id) for shard, next_id in next_ids().items()}
    if noted is None:
        raise ProtectData(
            f"{name} has rows and no positions: its property {POSITIONS} was removed, or other"
            " programs alone have written it. Load into a table of its own"
        )
    positions = decode_positions(noted, name)
    rows = next_ids()
    wrong = sorted(
        shard
        for shard in positions.keys() | rows.keys()
        if shard not in positions or positions[shard].next_id != rows.get(shard, 0)
    )
    if wrong:
        raise ProtectData(
            f"{name}: the snapshots of its loader are expired, and the rows do not end where the"
            f" table says: shard {wrong[0]} ends before added_id {rows.get(wrong[0], 0)}, the"
            f" position is {positions[wrong[0]].next_id if wrong[0] in positions else 'missing'}."
            " Rows were taken away, or the table was rolled back. Roll it back to a snapshot of"
            " the loader, or load into a table of its own"
        )
    return positions
