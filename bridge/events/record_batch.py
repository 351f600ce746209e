"""Kafka record batches, version 2 (KIP-98), written and read without a client library.

A batch covers a range of offsets. Offsets in it without a record are holes, as in a compacted
topic: a topic of one column has the offsets of the full log. A batch may even be empty, as
compaction leaves them. It moves readers past a range in which the column has no cell.

Base offset and leader epoch lie outside the CRC. Timestamps are ``created_at`` in milliseconds
(CREATE_TIME). With a compression all records together are one compressed text behind the batch's
head; a batch without records has nothing to compress and says so.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import compress
from typing import Final

from crc32c import crc32c

from cellfeed.bridge.events.compression import Compression
from cellfeed.bridge.events.erased_records import encode_values, erased_headers
from cellfeed.bridge.events.formats import EventFormat
from cellfeed.bridge.events.record_headers import CONTENT_TYPE, Headers
from cellfeed.bridge.events.record_keys import record_keys
from cellfeed.bridge.events.varints import SMALL, VARINTS, varint
from cellfeed.store.cells.body_codec import decode_bodies
from cellfeed.store.cells.cell import StoredCell

# Base offset, batch length; then leader epoch, magic, crc. The rest: attributes, last offset
# delta, first timestamp, last timestamp, producer id, producer epoch, base sequence, record count.
OUTER: Final = struct.Struct(">qi")
MIDDLE: Final = struct.Struct(">ibI")
INNER: Final = struct.Struct(">hiqqqhii")
HEAD_BYTES: Final = OUTER.size + MIDDLE.size + INNER.size
MAGIC: Final = 2
_NO_ATTRIBUTES: Final = b"\x00"
_KEY_LENGTH: Final = varint(36)
_NULL: Final = varint(-1)
"""The length of a missing value."""
_NO_TIMESTAMP: Final = -1
_NO_PRODUCER: Final = (-1, -1, -1)


def encode_record_batch(
    event_format: EventFormat,
    shard: int,
    cells: Sequence[StoredCell],
    bodies_json: Sequence[bytes] | None = None,
    *,
    base_offset: int,
    next_offset: int,
    leader_epoch: int,
    compression: Compression | None = None,
) -> bytes:
    """One batch that covers the offsets ``base_offset`` up to, not including, ``next_offset``;
    ``cells`` are the records in it, ascending.

    ``bodies_json``: the bodies to show, where they were decoded already. Raises DataDamaged when a
    stored body does not decode, ValueError when the range is empty or a cell lies outside of it.
    """
    if bodies_json is None:
        bodies_json = decode_bodies([cell.body for cell in cells])
    keys = record_keys([cell.row_key for cell in cells])
    values = encode_values(event_format, shard, cells, keys, bodies_json)
    if b"" in values:  # a format leaves some out (LeftOut): their offsets are holes
        has_record = [value != b"" for value in values]
        cells, keys, values = (
            list(compress(cells, has_record)),
            list(compress(keys, has_record)),
            list(compress(values, has_record)),
        )
    headers = encode_headers(
        [] if event_format.content_type is None else [(CONTENT_TYPE, event_format.content_type)]
    )
    covered = {"base_offset": base_offset, "next_offset": next_offset, "leader_epoch": leader_epoch}
    return frame_records(cells, keys, values, headers, **covered, compression=compression)


def encode_headers(headers: Headers) -> bytes:
    """A record's headers as they stand at its end."""
    parts = [varint(len(headers))]
    for name, value in headers:
        content = value.encode() if isinstance(value, str) else value or b""
        parts += (varint(len(name.encode())), name.encode(), varint(len(content)), content)
    return b"".join(parts)


_NO_HEADERS: Final = encode_headers([])


def frame_records(
    cells: Sequence[StoredCell],
    keys: Sequence[bytes],
    values: Sequence[bytes | None],
    headers: bytes = _NO_HEADERS,
    *,
    base_offset: int,
    next_offset: int,
    leader_epoch: int,
    compression: Compression | None = None,
) -> bytes:
    """:func:`encode_record_batch` for values that are encoded already; ``keys`` are 36 bytes each,
    ``headers`` those of every record, encoded. A record without a value has those of an erased cell
    instead."""
    if not 0 <= base_offset < next_offset:
        raise ValueError(f"a batch cannot cover the offsets from {base_offset} up to {next_offset}")
    if cells and not base_offset <= cells[0].added_id <= cells[-1].added_id < next_offset:
        raise ValueError(
            f"cells {cells[0].added_id} to {cells[-1].added_id} are not in a batch from"
            f" {base_offset} up to {next_offset}"
        )
    first_ms = last_ms = cells[0].created_at_us // 1000 if cells else _NO_TIMESTAMP
    parts: list[bytes] = []
    small, last_us, attributes_and_time = VARINTS, None, b""
    fixed = 37 + len(headers)  # beside variable parts: key length (1), key (36), headers
    erased = iter(
        [cell for cell, value in zip(cells, values, strict=True) if value is None]
        if None in values
        else ()
    )
    for (added_id, _, _, _, created_at_us, _), key, value in zip(cells, keys, values, strict=True):
        if created_at_us != last_us:  # cells that were put together have one moment
            last_us, last_ms = created_at_us, created_at_us // 1000
            attributes_and_time = _NO_ATTRIBUTES + varint(last_ms - first_ms)
        if value is None:
            delta, own_headers = (
                varint(added_id - base_offset),
                encode_headers(erased_headers(next(erased))),
            )
            size = len(attributes_and_time) + len(delta) + len(_NULL) + 37 + len(own_headers)
            parts += (
                varint(size),
                attributes_and_time,
                delta,
                _KEY_LENGTH,
                key,
                _NULL,
                own_headers,
            )
            continue
        offset_delta, length = added_id - base_offset, len(value)
        delta = small[offset_delta] if 0 <= offset_delta < SMALL else varint(offset_delta)
        value_length = small[length] if length < SMALL else varint(length)
        size = len(attributes_and_time) + len(delta) + len(value_length) + length + fixed
        parts += (
            small[size] if size < SMALL else varint(size),
            attributes_and_time,
            delta,
            _KEY_LENGTH,
            key,
            value_length,
            value,
            headers,
        )
    records, attributes = b"".join(parts), 0
    if compression is not None and cells:
        records, attributes = compression.compress(records), compression.attribute
    inner = INNER.pack(
        attributes, next_offset - base_offset - 1, first_ms, last_ms, *_NO_PRODUCER, len(cells)
    )
    crc = crc32c(records, crc32c(inner))
    return b"".join(
        (
            OUTER.pack(base_offset, MIDDLE.size + len(inner) + len(records)),
            MIDDLE.pack(leader_epoch, MAGIC, crc),
            inner,
            records,
        )
    )
