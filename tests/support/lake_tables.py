"""Lake tables of either format in a folder, and cells for them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cellfeed.bridge.events.decoded_event import DecodedEvent
from cellfeed.consumers.lake import delta_table, iceberg_catalog
from cellfeed.consumers.lake.cell_columns import CellColumns
from cellfeed.consumers.lake.contract import Addition, LakeTable
from cellfeed.consumers.lake.open_table import Place, make_lake_table, stage
from cellfeed.consumers.lake.positions import START, Position

SOURCE: Final = "cluster-a/trips/topic-1"
DAY_US: Final = 86_400_000_000
FIRST_US: Final = 20_000 * DAY_US

FORMATS: Final = ("iceberg", "delta")


def cell(shard: int, added_id: int, days: int = 0) -> DecodedEvent:
    key = uuid.uuid5(uuid.NAMESPACE_OID, f"{shard}-{added_id // 2}").bytes
    return DecodedEvent(
        shard,
        added_id,
        key,
        "BASE" if added_id % 3 else "NOTES",
        added_id - 5,
        FIRST_US + days * DAY_US + added_id,
        b'{"n":%d,"t":"caf\xc3\xa9"}' % added_id,
    )


def place_of(folder: Path, kind: str) -> Place:
    return Place(format="delta" if kind == "delta" else "iceberg", storage=folder)


def make(folder: Path, kind: str, source: str = SOURCE) -> LakeTable:
    return make_lake_table(place_of(folder, kind), source)


def addition(
    table: LakeTable,
    ends: Mapping[int, int],
    starts: Mapping[int, int] | None = None,
    source: str = SOURCE,
    days: int = 0,
    gap: int = 0,
) -> Addition:
    """Staged rows from ``starts`` (ids; 0 without) up to ``ends``, in a log whose offsets are
    ``gap`` ahead of its ids."""
    begin = {shard: (starts or {}).get(shard, 0) for shard in ends}
    rows = CellColumns()
    for shard, end in ends.items():
        for added_id in range(begin[shard], end):
            rows.add(cell(shard, added_id, days))
    return Addition(
        source,
        stage(table, rows),
        {s: Position(n, n + gap) if n else START for s, n in begin.items()},
        {s: Position(n, n + gap) for s, n in ends.items()},
        rows.newest_us,
    )


__all__ = ["FORMATS", "SOURCE", "addition", "cell", "delta_table", "iceberg_catalog", "make"]
