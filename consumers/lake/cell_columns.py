"""Rows that wait for a commit, as Arrow: a tenth of the memory of Python's objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from cellfeed.bridge.events.decoded_event import DecodedEvent
from cellfeed.consumers.lake.contract import TableKind
from cellfeed.store.cells.sharding import row_key_text

CELLS: Final = pa.schema(
    [
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("added_id", pa.int64(), nullable=False),
        pa.field("row_key", pa.string(), nullable=False),
        pa.field("column_name", pa.string(), nullable=False),
        pa.field("ref_key", pa.int64(), nullable=False),
        pa.field("created_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("body", pa.string(), nullable=False),
    ]
)
"""The columns of the table ``cells`` of either format."""

CELLS_KIND: Final = TableKind(
    "cells", CELLS, ("row_key", "column_name", "ref_key", "added_id"), has_every_id=True
)

CHUNK_ROWS: Final = 8_192
"""Rows that are Python's objects before they become a chunk of Arrow."""

_OBJECT_BYTES: Final = 400
"""Memory of a row as Python's objects, beside its body."""

DAY_US: Final = 86_400_000_000


class CellColumns:
    """The rows of all shards, in the order of their arrival. :meth:`days` sorts them."""

    def __init__(self) -> None:
        self.rows = 0
        self.newest_us = 0
        self._chunk_bytes = 0
        self._chunks: list[pa.RecordBatch] = []
        self._begin_chunk()

    @property
    def memory_bytes(self) -> int:
        """Memory of all rows, roughly."""
        return self._chunk_bytes + self._body_bytes + _OBJECT_BYTES * len(self._ids)

    def add(self, event: DecodedEvent) -> None:
        shard, added_id, row_key, column_name, ref_key, created_at_us, body = event
        self._shards.append(shard)
        self._ids.append(added_id)
        self._keys.append(row_key_text(row_key))
        self._names.append(column_name)
        self._refs.append(ref_key)
        self._moments.append(created_at_us)
        self._bodies.append(body)
        self._body_bytes += len(body)
        self.rows += 1
        if created_at_us > self.newest_us:
            self.newest_us = created_at_us
        if len(self._ids) == CHUNK_ROWS:
            self._end_chunk()

    def table(self) -> pa.Table:
        """The rows in the order of their arrival."""
        self._end_chunk()
        return pa.Table.from_batches(self._chunks, CELLS)

    def days(self) -> Iterator[tuple[int, pa.Table]]:
        """:func:`rows_of_days` of the rows."""
        return rows_of_days(self.table(), CELLS_KIND.order)

    def _end_chunk(self) -> None:
        if not self._ids:
            return
        values = [
            self._shards,
            self._ids,
            self._keys,
            self._names,
            self._refs,
            self._moments,
            self._bodies,
        ]
        chunk = pa.RecordBatch.from_arrays(
            [pa.array(each, field.type) for each, field in zip(values, CELLS, strict=True)],
            schema=CELLS,
        )
        self._chunks.append(chunk)
        self._chunk_bytes += chunk.nbytes
        self._begin_chunk()

    def _begin_chunk(self) -> None:
        self._shards: list[int] = []
        self._ids: list[int] = []
        self._keys: list[bytes] = []
        self._names: list[str] = []
        self._refs: list[int] = []
        self._moments: list[int] = []
        self._bodies: list[bytes] = []
        self._body_bytes = 0


def rows_of_days(table: pa.Table, order: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each day (days since 1970, ascending) of ``created_at``, sorted."""
    days = pc.divide(table["created_at"].cast(pa.int64()), DAY_US)
    found = sorted(pc.unique(days).to_pylist())
    for day in found:
        # Most tables have one day: no copy of it then.
        part = table.filter(pc.equal(days, day)) if len(found) > 1 else table
        yield day, part.sort_by([(name, "ascending") for name in order])
