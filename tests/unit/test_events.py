"""Envelopes and record batches: exact round trips, the same bytes as the libraries make, and an error for everything else."""

from __future__ import annotations

import io
import uuid
from typing import Any

import fastavro
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

import schemas
from bridge.events.envelope import AvroFormat, EventFormat, JsonFormat, decode_envelope
from bridge.events.record_batch import decode_record_batches, encode_record_batch
from bridge.events.varints import read_varint, varint, varint_of_moment
from store import json_body
from store.body_codec import encode_body
from store.cells import StoredCell
from store.errors import DataDamaged
from store.sharding import row_key_text
from tests.unit.test_json_body import BODIES

FORMATS: list[EventFormat] = [AvroFormat(100001), JsonFormat()]
COLUMNS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
MOMENTS_US = st.integers(0, 4_000_000_000_000_000)


@st.composite
def cells(draw: st.DrawFn, first_id: int = 0) -> list[StoredCell]:
    ids = sorted(draw(st.sets(st.integers(first_id, first_id + 5000), max_size=12)))
    moments = sorted(draw(st.lists(MOMENTS_US, min_size=len(ids), max_size=len(ids))))
    return [
        StoredCell(
            added_id,
            draw(st.binary(min_size=16, max_size=16)),
            draw(COLUMNS),
            draw(st.integers(-(2**63), 2**63 - 1)),
            moment_us,
            encode_body(json_body.canonical(draw(BODIES))),
        )
        for added_id, moment_us in zip(ids, moments, strict=True)
    ]


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=3))
def test_varints_round_trip(value: int, behind: bytes) -> None:
    assert read_varint(varint(value) + behind, 0) == (value, len(varint(value)))
    if value >= 0 and value < 2**62:
        assert varint_of_moment(value) == varint(value)


@given(st.integers(0, 65_535), st.integers(0, 2**47), COLUMNS, st.integers(-(2**63), 2**63 - 1), MOMENTS_US, BODIES)
def test_avro_envelopes_are_what_fastavro_writes(
    shard: int, added_id: int, column: str, ref_key: int, created_at_us: int, body: dict[str, Any]
) -> None:
    row_key = uuid.uuid4()
    text = json_body.canonical(body)
    mine = AvroFormat(7).encode(shard, StoredCell(added_id, row_key.bytes, column, ref_key, created_at_us, b""), row_key_text(row_key.bytes), text)
    theirs = io.BytesIO()
    record = {
        "added_id": added_id,
        "shard": shard,
        "row_key": row_key,
        "column_name": column,
        "ref_key": ref_key,
        "created_at": created_at_us,
        "body": text.decode(),
    }
    fastavro.schemaless_writer(theirs, fastavro.parse_schema(schemas.load_avro("cell_envelope")), record)
    assert mine == b"\x00\x00\x00\x00\x07" + theirs.getvalue()


@pytest.mark.parametrize("event_format", FORMATS, ids=lambda f: f.name)
@given(data=st.data())
def test_a_batch_of_cells_comes_back_cell_by_cell(event_format: EventFormat, data: st.DataObject) -> None:
    base = data.draw(st.integers(0, 2**40))
    given_cells = data.draw(cells(base))
    batch = encode_record_batch(event_format, 5, given_cells, base_offset=base, next_offset=base + 5001, leader_epoch=3)
    records = list(decode_record_batches(batch + batch))
    assert records[len(given_cells) :] == records[: len(given_cells)]
    for record, cell in zip(records, given_cells, strict=False):
        assert (record.offset, record.timestamp_ms, record.key) == (cell.added_id, cell.created_at_us // 1000, row_key_text(cell.row_key))
        event = decode_envelope(record.value)
        assert event[:6] == (5, *cell[:5])
        assert encode_body(event.body_json) == cell.body
    theirs = list(DefaultRecordBatch(bytearray(batch)))
    assert [(r.offset, r.timestamp, r.key, r.value) for r in theirs] == [tuple(r) for r in records[: len(given_cells)]]


def batch_of(count: int) -> bytes:
    stored = [StoredCell(n, uuid.UUID(int=n).bytes, "BASE", n, 1_700_000_000_000_000 + n, encode_body(b'{"n":%d}' % n)) for n in range(count)]
    return encode_record_batch(AvroFormat(1), 0, stored, base_offset=0, next_offset=count, leader_epoch=0)


def test_an_empty_batch_covers_its_range_without_a_record() -> None:
    batch = encode_record_batch(JsonFormat(), 0, [], base_offset=10, next_offset=20, leader_epoch=0)
    assert list(decode_record_batches(batch)) == []
    theirs = DefaultRecordBatch(bytearray(batch))
    assert (theirs.base_offset, theirs.next_offset) == (10, 20)


def test_every_flipped_bit_of_a_batchs_content_is_found() -> None:
    batch = batch_of(3)
    for place in range(16, len(batch)):  # base offset and leader epoch lie outside the checksum
        for bit in range(8):
            damaged = bytearray(batch)
            damaged[place] ^= 1 << bit
            with pytest.raises(DataDamaged):
                list(decode_record_batches(bytes(damaged)))


def test_a_cut_batch_is_an_error_wherever_it_is_cut() -> None:
    batch = batch_of(3)
    for length in range(1, len(batch)):
        with pytest.raises(DataDamaged):
            list(decode_record_batches(batch[:length]))


@given(st.binary(max_size=200))
def test_garbage_is_never_taken_for_a_cell(garbage: bytes) -> None:
    for value in (garbage, b"\x00\x00\x00\x00\x01" + garbage, b"{" + garbage):
        with pytest.raises(DataDamaged):
            decode_envelope(value)


@pytest.mark.parametrize("event_format", FORMATS, ids=lambda f: f.name)
def test_a_cut_or_lengthened_value_is_never_taken_for_a_cell(event_format: EventFormat) -> None:
    cell = StoredCell(5, uuid.UUID(int=5).bytes, 'odd ","body":', -7, 1_700_000_000_123_456, b"")
    value = event_format.encode(3, cell, row_key_text(cell.row_key), b'{"a":",\\"column_name\\":"}')
    assert decode_envelope(value).body_json == b'{"a":",\\"column_name\\":"}'
    for length in range(len(value)):
        with pytest.raises(DataDamaged):
            decode_envelope(value[:length])
    with pytest.raises(DataDamaged):
        decode_envelope(value + b" ")
    with pytest.raises(DataDamaged):
        decode_envelope(None)
