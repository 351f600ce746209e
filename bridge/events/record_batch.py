"""Kafka record batches, version 2 (KIP-98), written and read without a client library.

A batch covers a range of offsets. Offsets in it without a record are holes, as in a compacted topic: a topic of one column has the offsets of
the full log, and a batch may even be empty (as compaction leaves them), which moves readers past a range in which the column has no cell.

Base offset and leader epoch lie outside the CRC. Timestamps are ``created_at`` in milliseconds (CREATE_TIME).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from bridge.events.envelope import EventFormat
from bridge.events.varints import VARINTS, read_varint, varint
from store.body_codec import decode_body
from store.cells import StoredCell
from store.errors import DataDamaged
from store.sharding import row_key_text

# base offset, batch length | leader epoch, magic, crc | attributes, last offset delta, first timestamp, last timestamp, producer id, producer epoch,
# base sequence, record count
_OUTER: Final = struct.Struct(">qi")
_MIDDLE: Final = struct.Struct(">ibI")
_INNER: Final = struct.Struct(">hiqqqhii")
HEAD_BYTES: Final = _OUTER.size + _MIDDLE.size + _INNER.size
_MAGIC: Final = 2
_KEY_LENGTH: Final = varint(36)
_NO_HEADERS: Final = varint(0)
_SMALL: Final = len(VARINTS)


class Record(NamedTuple):
    """One record of a batch."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def encode_record_batch(event_format: EventFormat, shard: int, cells: Sequence[StoredCell], *, base_offset: int, next_offset: int, leader_epoch: int) -> bytes:
    """One batch that covers the offsets ``base_offset`` up to, not including, ``next_offset``; ``cells`` are the records in it, ascending."""
    first_ms = cells[0].created_at_us // 1000 if cells else -1
    last_ms = first_ms
    parts: list[bytes] = []
    append, encode = parts.append, event_format.encode
    for cell in cells:
        added_id, row_key, _, _, created_at_us, body = cell
        key = row_key_text(row_key)
        value = encode(shard, cell, key, decode_body(body))
        last_ms = created_at_us // 1000
        elapsed_ms, offset_delta, length = last_ms - first_ms, added_id - base_offset, len(value)
        elapsed = VARINTS[elapsed_ms] if elapsed_ms < _SMALL else varint(elapsed_ms)
        delta = VARINTS[offset_delta] if offset_delta < _SMALL else varint(offset_delta)
        value_length = VARINTS[length] if length < _SMALL else varint(length)
        # attributes (1) + timestamp + offset + key length (1) + key (36) + value length + value + header count (1)
        size = 39 + len(elapsed) + len(delta) + len(value_length) + length
        append(VARINTS[size] if size < _SMALL else varint(size))
        append(b"\x00" + elapsed + delta + _KEY_LENGTH + key + value_length)
        append(value)
        append(_NO_HEADERS)
    inner = _INNER.pack(0, next_offset - base_offset - 1, first_ms, last_ms, -1, -1, -1, len(cells)) + b"".join(parts)
    return b"".join((_OUTER.pack(base_offset, _MIDDLE.size + len(inner)), _MIDDLE.pack(leader_epoch, _MAGIC, crc32c(inner)), inner))


def decode_record_batches(data: bytes) -> Iterator[Record]:
    """The records of whole batches one after another. Raises DataDamaged for anything that is not: a wrong checksum, length or count."""
    position = 0
    while position < len(data):
        end = _check_head(data, position)
        yield from _records(data, position, end)
        position = end


def _check_head(data: bytes, position: int) -> int:
    if len(data) - position < HEAD_BYTES:
        raise DataDamaged(f"a record batch is cut: {len(data) - position} bytes, its head alone has {HEAD_BYTES}")
    _, batch_bytes = _OUTER.unpack_from(data, position)
    _, magic, crc = _MIDDLE.unpack_from(data, position + _OUTER.size)
    end = int(position + _OUTER.size + batch_bytes)
    if magic != _MAGIC:
        raise DataDamaged(f"a record batch has magic {magic}, not {_MAGIC}")
    if batch_bytes < HEAD_BYTES - _OUTER.size or end > len(data):
        raise DataDamaged(f"a record batch claims {batch_bytes} bytes of {len(data) - position}")
    if crc32c(memoryview(data)[position + _OUTER.size + _MIDDLE.size : end]) != crc:
        raise DataDamaged("a record batch's checksum is wrong")
    return end


def _records(data: bytes, position: int, end: int) -> Iterator[Record]:
    base_offset, _ = _OUTER.unpack_from(data, position)
    attributes, last_delta, first_ms, _, _, _, _, count = _INNER.unpack_from(data, position + _OUTER.size + _MIDDLE.size)
    if attributes & 0x07:
        raise DataDamaged("a record batch is compressed")
    at = position + HEAD_BYTES
    for _ in range(count):
        size, at = read_varint(data, at)
        record_end = at + size
        if size < 1 or record_end > end:
            raise DataDamaged(f"a record claims {size} bytes beyond its batch")
        elapsed_ms, field = read_varint(data, at + 1)
        offset_delta, field = read_varint(data, field)
        key, field = _nullable(data, field, record_end)
        value, field = _nullable(data, field, record_end)
        headers, field = read_varint(data, field)
        for _ in range(2 * headers):
            _, field = _nullable(data, field, record_end)
        if field != record_end or not 0 <= offset_delta <= last_delta:
            raise DataDamaged("a record does not end where it says, or lies outside its batch")
        yield Record(base_offset + offset_delta, first_ms + elapsed_ms, key, value)
        at = record_end
    if at != end:
        raise DataDamaged(f"a record batch has {end - at} bytes behind its {count} records")


def _nullable(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position)
    if length < 0:
        return None, position
    if position + length > end:
        raise DataDamaged(f"a field of {length} bytes goes beyond its record")
    return data[position : position + length], position + length
