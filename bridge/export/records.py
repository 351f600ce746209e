"""Cells as records of an export: key, value, headers and timestamp, and what becomes of a record that is too large for the topic.

Key, value and timestamp are byte for byte those of the gateway's topic in the same format. The headers are there for whoever goes by added_id, this exporter
first.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from bridge.events.erased_records import encode_values
from bridge.events.named_formats import event_format
from bridge.events.record_headers import CONTENT_TYPE, Headers, LeaderEpochs, record_headers
from bridge.events.record_keys import record_keys
from bridge.events.views import ViewReader
from bridge.export.declaration import Export
from bridge.export.limits import RECORD_OVERHEAD_BYTES
from bridge.triggers.parked import ParkedCell
from store.cells import StoredCell
from store.sharding import row_key_text

CLAIM_CHECK: Final = "claim_check"
"""Header of a record that only tells where its cell is; its value is the cell's size in bytes of canonical JSON."""

_HEADERS_BYTES: Final = 4 * 24
"""Names and lengths of the headers of a record; their values are counted."""


class OutRecord(NamedTuple):
    """A record to be produced. Without a value it is a cell's that has no body: one that was erased, or that tells of an erasure."""

    shard: int
    added_id: int
    key: bytes
    value: bytes | None
    headers: Headers
    timestamp_ms: int

    @property
    def size(self) -> int:
        """Bytes that the broker counts, at most."""
        headers = sum(len(value or b"") for _, value in self.headers)
        return len(self.key) + len(self.value or b"") + headers + _HEADERS_BYTES + RECORD_OVERHEAD_BYTES


class Encoded(NamedTuple):
    """``too_large``: cells that get no record, with the reason."""

    records: list[OutRecord]
    too_large: list[ParkedCell]


class RecordEncoder:
    """Encodes the cells of one export. Safe to use from several threads. ``schema_id``: for Avro, what the registry calls the envelope."""

    def __init__(self, export: Export, datastore: str, schema_id: int) -> None:
        self._export = export
        self._datastore = datastore
        self._view = ViewReader(export.view)
        self._format = event_format(export.format, datastore, schema_id)
        self._more: Headers = [(CONTENT_TYPE, self._format.content_type)] if self._format.content_type is not None else []
        self._bytes_max = export.record_bytes_max

    def encode(self, shard: int, cells: Sequence[StoredCell], epochs: LeaderEpochs) -> Encoded:
        """Raises DataDamaged."""
        shown, bodies = self._view.read(cells)
        keys = record_keys([cell.row_key for cell in shown])
        values = encode_values(self._format, shard, shown, keys, bodies)
        records: list[OutRecord] = []
        too_large: list[ParkedCell] = []
        epoch_of, more, bytes_max = epochs.of, self._more, self._bytes_max
        for cell, key, value, body in zip(shown, keys, values, bodies, strict=True):
            record = OutRecord(
                shard,
                cell.added_id,
                key,
                value,
                record_headers(cell, epoch_of(cell.added_id)) + (more if value is not None else []),
                cell.created_at_us // 1000,
            )
            if value is None or len(value) + 1024 < bytes_max or record.size <= bytes_max:
                records.append(record)
            elif self._export.too_large == CLAIM_CHECK:
                records.append(claim_check(record, cell, body, self._datastore))
            else:
                too_large.append(self._parked(record, cell))
        return Encoded(records, too_large)

    def _parked(self, record: OutRecord, cell: StoredCell) -> ParkedCell:
        now_us = time.time_ns() // 1000
        return ParkedCell(
            group=self._export.group,
            topic=self._datastore,
            partition=record.shard,
            added_id=cell.added_id,
            row_key=record.key.decode(),
            column_name=cell.column_name,
            ref_key=cell.ref_key,
            error=f"too large: its record has up to {record.size} bytes, record_bytes_max of export {self._export.name} is {self._bytes_max}",
            attempts=1,
            parked_at_us=now_us,
            last_tried_at_us=now_us,
        )


def claim_check(record: OutRecord, cell: StoredCell, body_json: bytes, datastore: str) -> OutRecord:
    """A small record that says where the cell is, and by which bytes a reader knows that it got the right one (Hohpe and Woolf's claim check)."""
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
    value = json.dumps(reference, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
    return record._replace(value=value, headers=[*record.headers, (CLAIM_CHECK, b"%d" % len(body_json))])
