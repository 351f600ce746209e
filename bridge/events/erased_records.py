"""Records of cells without a body: the erased cells that an erasure leaves in a log, and the cell
that marks it (E20).

The value is null: to Kafka's tools that is a tombstone of the record's key, the row key. To a
reader that keeps a table by row key it says that the row is gone. The envelope's fields stand in
headers: ``added_id``, ``column_name`` and ``ref_key``, in the feed of a gateway and of an exporter
alike. The cell that marks an erasure has the column name ``ERASED_COLUMN``; every view shows it, so
that no reader of a row misses it.
"""

from __future__ import annotations

from collections.abc import Sequence

from cellfeed.bridge.events.formats import EventFormat
from cellfeed.bridge.events.record_headers import ADDED_ID, COLUMN_NAME, REF_KEY, Headers
from cellfeed.store.cells.cell import ERASED_JSON, StoredCell


def encode_values(
    event_format: EventFormat,
    shard: int,
    cells: Sequence[StoredCell],
    keys: Sequence[bytes],
    bodies_json: Sequence[bytes],
) -> Sequence[bytes | None]:
    """The values of cells, in order: as the format has them, None for those without a body."""
    if ERASED_JSON not in bodies_json:
        return event_format.encode_many(shard, cells, keys, bodies_json)
    left = [number for number, body in enumerate(bodies_json) if body != ERASED_JSON]
    encoded = iter(
        event_format.encode_many(
            shard,
            *([each[number] for number in left] for each in (cells, keys, bodies_json)),  # type: ignore[arg-type]
        )
    )
    return [None if body == ERASED_JSON else next(encoded) for body in bodies_json]


def erased_headers(cell: StoredCell) -> Headers:
    """The headers that name the cell of a record without a value."""
    return [
        (ADDED_ID, b"%d" % cell.added_id),
        (COLUMN_NAME, cell.column_name.encode()),
        (REF_KEY, b"%d" % cell.ref_key),
    ]
