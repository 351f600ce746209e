"""Reading record batches as ``record_batch.py`` writes them: every record as it was written, or an
error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from cellfeed.bridge.events.record_batch import HEAD_BYTES, INNER, MAGIC, MIDDLE, OUTER
from cellfeed.bridge.events.varints import read_varint
from cellfeed.store.errors import DataDamaged

_RECORD_BYTES_MIN: Final = 7
"""A record with nothing in it: its length, attributes, timestamp, offset, key and value lengths,
header count."""


class Record(NamedTuple):
    """One record of a batch."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def decode_record_batches(data: bytes) -> Iterator[Record]:
    """The records of whole batches one after another. Raises DataDamaged for anything that is not:
    a wrong checksum, length, count or order.

    A batch is checked as a whole before its first record is given out. Batches as cellfeed writes
    them: uncompressed, without transactions.
    """
    position = 0
    while position < len(data):
        end = _check_head(data, position)
        yield from _records(data, position, end)
        position = end


def _check_head(data: bytes, position: int) -> int:
    if len(data) - position < HEAD_BYTES:
        raise DataDamaged(
            f"a record batch is cut: {len(data) - position} bytes, its head alone has {HEAD_BYTES}"
        )
    base_offset, batch_bytes = OUTER.unpack_from(data, position)
    _, magic, crc = MIDDLE.unpack_from(data, position + OUTER.size)
    end = int(position + OUTER.size + batch_bytes)
    if magic != MAGIC:
        raise DataDamaged(f"a record batch has magic {magic}, not {MAGIC}")
    if batch_bytes < HEAD_BYTES - OUTER.size or end > len(data):
        raise DataDamaged(f"a record batch claims {batch_bytes} bytes of {len(data) - position}")
    if crc32c(memoryview(data)[position + OUTER.size + MIDDLE.size : end]) != crc:
        raise DataDamaged("a record batch's checksum is wrong")
    attributes, last_delta, _, _, _, _, _, count = INNER.unpack_from(
        data, position + OUTER.size + MIDDLE.size
    )
    if attributes:
        raise DataDamaged(
            f"a record batch has attributes {attributes:#x}: it is compressed, transactional or not"
            " cellfeed's"
        )
    if (
        base_offset < 0
        or last_delta < 0
        or not 0 <= count <= min(last_delta + 1, (end - position - HEAD_BYTES) // _RECORD_BYTES_MIN)
    ):
        raise DataDamaged(
            f"a record batch claims {count} records at {last_delta + 1} offsets from {base_offset}"
            f" in {end - position} bytes"
        )
    return end


def _records(data: bytes, position: int, end: int) -> list[Record]:
    base_offset, _ = OUTER.unpack_from(data, position)
    _, last_delta, first_ms, _, _, _, _, count = INNER.unpack_from(
        data, position + OUTER.size + MIDDLE.size
    )
    records: list[Record] = []
    at, delta_before = position + HEAD_BYTES, -1
    for _ in range(count):
        size, at = read_varint(data, at)
        record_end = at + size
        if size < _RECORD_BYTES_MIN - 1 or record_end > end:
            raise DataDamaged(f"a record claims {size} bytes, which is none or beyond its batch")
        if data[at]:
            raise DataDamaged(f"a record has attributes {data[at]:#x}, and none exists")
        elapsed_ms, field = read_varint(data, at + 1)
        offset_delta, field = read_varint(data, field)
        key, field = _nullable(data, field, record_end)
        value, field = _nullable(data, field, record_end)
        headers, field = read_varint(data, field)
        if not 0 <= headers <= size:
            raise DataDamaged(f"a record of {size} bytes claims {headers} headers")
        for _ in range(headers):
            name, field = _nullable(data, field, record_end)
            if name is None:
                raise DataDamaged("a record has a header without a name")
            _, field = _nullable(data, field, record_end)
        if field != record_end:
            raise DataDamaged(f"a record of {size} bytes does not end where it says")
        if not delta_before < offset_delta <= last_delta:
            raise DataDamaged(
                f"a record at offset {base_offset + offset_delta} is out of order or lies outside"
                " its batch"
            )
        records.append(Record(base_offset + offset_delta, first_ms + elapsed_ms, key, value))
        at, delta_before = record_end, offset_delta
    if at != end:
        raise DataDamaged(f"a record batch has {end - at} bytes behind its {count} records")
    return records


def _nullable(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position)
    if length == -1:
        return None, position
    if length < 0 or position + length > end:
        raise DataDamaged(f"a field of {length} bytes goes beyond its record")
    return data[position : position + length], position + length
