"""Cells as records of an export: key, value, headers and timestamp, and how a record that is too
large for the topic is handled.

Key, value and timestamp are byte for byte those of the gateway's topic in the same format. The
headers are for readers that go by added_id, this exporter first.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from itertools import repeat
from typing import Final, NamedTuple

from cellfeed.bridge.events.erased_records import encode_values
from cellfeed.bridge.events.formats import EventFormat, LeftOut
from cellfeed.bridge.events.named_formats import event_format
from cellfeed.bridge.events.record_headers import (
    ADDED_ID,
    CONTENT_TYPE,
    Headers,
    LeaderEpochs,
    SharedHeaders,
    without_more,
)
from cellfeed.bridge.events.record_keys import record_keys
from cellfeed.bridge.events.views import ViewReader
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.limits import RECORD_OVERHEAD_BYTES
from cellfeed.bridge.triggers.parked.cell import ParkedCell
from cellfeed.bridge.typed.typed_format import TypedFormat
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.sharding import row_key_text

CLAIM_CHECK: Final = "claim_check"
"""Header of a record that only names the place of its cell; its value is the cell's size in bytes
of canonical JSON."""

_HEADERS_BYTES: Final = 4 * 24
"""Names and lengths of the headers of a record; their values are counted."""


_HEADERS_ROOM_BYTES: Final = 1024
"""More than headers and the broker's additions ever take: where values are that much below the
limit, no record need be measured."""


class OutRecord(NamedTuple):
    """A record to be produced. Without a value it is a cell's that has no body: an erased cell, or
    one that marks an erasure. ``shared``: its headers but for the added_id, a list that other
    records share and nobody changes. A batch holds thousands of records, and the garbage collector
    walks every object that each of them has of its own."""

    shard: int
    added_id: int
    key: bytes
    value: bytes | None
    shared: Headers
    timestamp_ms: int

    @property
    def headers(self) -> Headers:
        """All of them, in order."""
        return [(ADDED_ID, b"%d" % self.added_id), *self.shared]

    @property
    def size(self) -> int:
        """Bytes that the broker counts, at most."""
        headers = sum(len(value or b"") for _, value in self.headers)
        return (
            len(self.key)
            + len(self.value or b"")
            + headers
            + _HEADERS_BYTES
            + RECORD_OVERHEAD_BYTES
        )


class Encoded(NamedTuple):
    """``too_large``: cells that get no record, with the reason."""

    records: list[OutRecord]
    too_large: list[ParkedCell]


class RecordEncoder:
    """Encodes the cells of one export. Safe to use from several threads. ``schema_id``: for Avro,
    the envelope's id in the registry. ``typed``: of an export whose bodies are typed."""

    def __init__(
        self, export: Export, datastore: str, schema_id: int, typed: TypedFormat | None = None
    ) -> None:
        self._export = export
        self._datastore = datastore
        self._view = ViewReader(export.view)
        self._format: EventFormat = typed or event_format(
            export.format, datastore, schema_id, export.created_at
        )
        self._typed = typed
        self._headers = SharedHeaders(
            [(CONTENT_TYPE, self._format.content_type)]
            if self._format.content_type is not None
            else []
        )
        self._bytes_max = export.record_bytes_max

    def encode(self, shard: int, cells: Sequence[StoredCell], epochs: LeaderEpochs) -> Encoded:
        """Raises DataDamaged."""
        shown, bodies = self._view.read(cells)
        keys = record_keys([cell.row_key for cell in shown])
        values = encode_values(self._format, shard, shown, keys, bodies)
        unfit = [
            self._parked(shard, cell, f"unfit: {value.reason}")
            for cell, value in zip(shown, values, strict=True)
            if isinstance(value, LeftOut)
        ]
        if unfit:
            fitting = [
                index for index, value in enumerate(values) if not isinstance(value, LeftOut)
            ]
            shown, bodies = (
                [shown[index] for index in fitting],
                [bodies[index] for index in fitting],
            )
            keys, values = [keys[index] for index in fitting], [values[index] for index in fitting]
        ids, timestamps_ms, shared = (
            [cell.added_id for cell in shown],
            [cell.created_at_us // 1000 for cell in shown],
            self._headers.of(shown, epochs),
        )
        if None in values:  # a record without a value has no content type either
            shared = [
                each if value is not None else without_more(each)
                for value, each in zip(values, shared, strict=True)
            ]
        columns = zip(
            repeat(shard), ids, keys, values, shared, timestamps_ms, strict=False
        )  # one of them has no end
        records = list(map(OutRecord._make, columns))
        if (
            max((len(value) for value in values if value is not None), default=0)
            + _HEADERS_ROOM_BYTES
            < self._bytes_max
        ):
            return Encoded(records, unfit)
        return self._small_enough(records, shown, bodies, unfit)

    def _small_enough(
        self,
        records: Sequence[OutRecord],
        cells: Sequence[StoredCell],
        bodies: Sequence[bytes],
        unfit: list[ParkedCell],
    ) -> Encoded:
        """Encodes them where some may be too large."""
        found = Encoded([], unfit)
        for record, cell, body in zip(records, cells, bodies, strict=True):
            if record.size <= self._bytes_max:
                found.records.append(record)
            elif self._export.too_large == CLAIM_CHECK:
                found.records.append(claim_check(record, cell, body, self._datastore))
            else:
                said = (
                    f"record has up to {record.size} bytes, record_bytes_max of export"
                    f" {self._export.name} is {self._bytes_max}"
                )
                found.too_large.append(self._parked(record.shard, cell, f"too large: its {said}"))
        return Encoded(found.records, sorted(found.too_large, key=lambda parked: parked.added_id))

    def is_as_json(self, shard: int, cell: StoredCell, body_json: bytes, value: bytes) -> bool:
        """Whether a value is the typed record of a cell as it was while no version of the schema
        took its body."""
        return self._typed is not None and self._typed.is_as_json(
            shard, cell, row_key_text(cell.row_key), body_json, value
        )

    def _parked(self, shard: int, cell: StoredCell, error: str) -> ParkedCell:
        now_us = time.time_ns() // 1000
        return ParkedCell(
            group=self._export.group,
            topic=self._datastore,
            partition=shard,
            added_id=cell.added_id,
            row_key=row_key_text(cell.row_key).decode(),
            column_name=cell.column_name,
            ref_key=cell.ref_key,
            error=error,
            attempts=1,
            parked_at_us=now_us,
            last_tried_at_us=now_us,
        )


def claim_check(record: OutRecord, cell: StoredCell, body_json: bytes, datastore: str) -> OutRecord:
    """A small record that says where the cell is, with a digest by which a reader checks it (Hohpe
    and Woolf's claim check)."""
    reference = {
        "claim_check": 1,
        "datastore": datastore,
        "shard": record.shard,
        "added_id": record.added_id,
        "row_key": row_key_text(cell.row_key).decode(),
        "column_name": cell.column_name,
        "ref_key": cell.ref_key,
        "body_bytes": len(body_json),
        "body_sha256": hashlib.sha256(body_json).hexdigest(),
    }
    value = json.dumps(
        reference, ensure_ascii=False, sort_keys=True, separators=(",", ":")
    ).encode()
    return record._replace(
        value=value, shared=[*record.shared, (CLAIM_CHECK, b"%d" % len(body_json))]
    )
