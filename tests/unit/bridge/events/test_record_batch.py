"""Record batches: other people's readers see the same records, holes and empty ranges are covered,
and damage is an error."""

from __future__ import annotations

import struct
import uuid

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords
from kio.records.readers import read_batch

from cellfeed.bridge.events.envelope import AvroFormat, EventFormat, JsonFormat, decode_envelope
from cellfeed.bridge.events.record_batch import HEAD_BYTES, encode_record_batch, frame_records
from cellfeed.bridge.events.record_batch_reader import Record, decode_record_batches
from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.sharding import row_key_text
from cellfeed.store.errors import DataDamaged
from tests.support.event_cells import FORMATS, cells, plain_cells

CRC_AT, INNER_AT = 17, 21


def plain_batch(count: int, first_id: int = 0) -> bytes:
    return encode_record_batch(
        AvroFormat(1),
        0,
        plain_cells(count, first_id),
        base_offset=first_id,
        next_offset=first_id + count,
        leader_epoch=0,
    )


def with_checksum(batch: bytes | bytearray) -> bytes:
    """The batch with its length and its checksum made right: damage that only a look at the content
    can find."""
    return b"".join(
        [
            batch[:8],
            struct.pack(">i", len(batch) - 12),
            batch[12:CRC_AT],
            struct.pack(">I", crc32c(bytes(batch[INNER_AT:]))),
            batch[INNER_AT:],
        ]
    )


@pytest.mark.parametrize("event_format", FORMATS, ids=lambda f: f.name)
@given(data=st.data())
def test_a_batch_of_cells_is_decoded_cell_by_cell(
    event_format: EventFormat, data: st.DataObject
) -> None:
    base = data.draw(st.integers(0, 2**40) | st.integers(0, 20_000))
    span = data.draw(st.sampled_from([50, 5_000, 40_000]))
    given_cells = data.draw(cells(base, span))
    batch = encode_record_batch(
        event_format, 5, given_cells, base_offset=base, next_offset=base + span, leader_epoch=3
    )
    records = list(decode_record_batches(batch + batch))
    assert len(records) == 2 * len(given_cells)
    assert records[len(given_cells) :] == records[: len(given_cells)]
    for record, cell in zip(records, given_cells, strict=False):
        assert (record.offset, record.timestamp_ms, record.key) == (
            cell.added_id,
            cell.created_at_us // 1000,
            row_key_text(cell.row_key),
        )
        assert decode_envelope(record.value) == (5, *cell[:5], decode_body(cell.body))


@given(data=st.data())
def test_other_libraries_decode_the_same_records(data: st.DataObject) -> None:
    base = data.draw(st.integers(0, 2**40))
    given_cells = data.draw(cells(base, 9_000))
    batch = encode_record_batch(
        JsonFormat(), 5, given_cells, base_offset=base, next_offset=base + 9_000, leader_epoch=3
    )
    mine = list(decode_record_batches(batch))

    by_aiokafka = AiokafkaBatch(bytearray(batch))
    assert by_aiokafka.validate_crc()
    assert (by_aiokafka.base_offset, by_aiokafka.next_offset, by_aiokafka.is_transactional) == (
        base,
        base + 9_000,
        False,
    )
    assert [Record(r.offset, r.timestamp, r.key, r.value) for r in by_aiokafka] == mine

    by_kafka_python = MemoryRecords(batch).next_batch()
    assert by_kafka_python.validate_crc()
    assert (
        by_kafka_python.base_offset,
        by_kafka_python.next_offset,
        by_kafka_python.leader_epoch,
    ) == (base, base + 9_000, 3)
    assert [Record(r.offset, r.timestamp, r.key, r.value) for r in by_kafka_python] == mine

    by_kio, size = read_batch(batch, 0)
    assert (size, by_kio.base_offset, by_kio.last_offset_delta, by_kio.partition_leader_epoch) == (
        len(batch),
        base,
        8_999,
        3,
    )
    assert [(r.offset, r.key, r.value, r.headers) for r in by_kio.records] == [
        (r.offset, r.key, r.value, ()) for r in mine
    ]
    if mine:
        assert (by_kio.base_timestamp, by_kio.max_timestamp) == (
            mine[0].timestamp_ms,
            mine[-1].timestamp_ms,
        )


def test_an_empty_batch_covers_its_range_without_a_record() -> None:
    batch = encode_record_batch(JsonFormat(), 0, [], base_offset=10, next_offset=20, leader_epoch=0)
    assert len(batch) == HEAD_BYTES == 61
    assert list(decode_record_batches(batch)) == []
    by_aiokafka = AiokafkaBatch(bytearray(batch))
    assert (by_aiokafka.base_offset, by_aiokafka.next_offset, list(by_aiokafka)) == (10, 20, [])
    by_kafka_python = MemoryRecords(batch).next_batch()
    assert (by_kafka_python.base_offset, by_kafka_python.next_offset, list(by_kafka_python)) == (
        10,
        20,
        [],
    )
    by_kio, _ = read_batch(batch, 0)
    assert (by_kio.base_offset, by_kio.last_offset_delta, by_kio.records) == (10, 9, ())


def test_empty_and_full_batches_follow_one_another() -> None:
    empty = encode_record_batch(AvroFormat(1), 0, [], base_offset=3, next_offset=9, leader_epoch=0)
    assert [
        record.offset
        for record in decode_record_batches(plain_batch(3) + empty + plain_batch(2, 9))
    ] == [0, 1, 2, 9, 10]
    assert list(decode_record_batches(b"")) == []


def test_thousands_of_cells_make_one_batch() -> None:
    given_cells = plain_cells(10_000, 5)
    batch = encode_record_batch(
        AvroFormat(1), 0, given_cells, base_offset=5, next_offset=10_005, leader_epoch=0
    )
    assert [record.offset for record in decode_record_batches(batch)] == list(range(5, 10_005))
    assert MemoryRecords(batch).next_batch().next_offset == 10_005


@pytest.mark.parametrize(("base_offset", "next_offset"), [(0, 3), (1, 4), (5, 5), (9, 5), (-1, 4)])
def test_a_range_that_lacks_some_of_its_cells_is_refused(
    base_offset: int, next_offset: int
) -> None:
    with pytest.raises(ValueError, match="batch"):
        encode_record_batch(
            AvroFormat(1),
            0,
            plain_cells(4),
            base_offset=base_offset,
            next_offset=next_offset,
            leader_epoch=0,
        )


def test_a_stored_body_that_does_not_decode_is_an_error_and_no_batch() -> None:
    damaged = [*plain_cells(2), plain_cells(1, 2)[0]._replace(body=b"\x02garbage")]
    with pytest.raises(DataDamaged):
        encode_record_batch(AvroFormat(1), 0, damaged, base_offset=0, next_offset=3, leader_epoch=0)


def test_every_flipped_bit_of_a_batchs_content_is_found() -> None:
    batch = plain_batch(3)
    for place in range(16, len(batch)):  # base offset and leader epoch lie outside the checksum
        for bit in range(8):
            damaged = bytearray(batch)
            damaged[place] ^= 1 << bit
            with pytest.raises(DataDamaged):
                list(decode_record_batches(bytes(damaged)))


def test_a_cut_batch_is_an_error_wherever_it_is_cut() -> None:
    batch = plain_batch(3)
    for length in range(1, len(batch)):
        with pytest.raises(DataDamaged):
            list(decode_record_batches(batch[:length]))


def test_no_record_of_a_damaged_batch_is_given_out() -> None:
    whole = plain_batch(3)
    damaged = bytearray(whole)
    damaged[-1] = 2  # one header, which is not there
    reader = decode_record_batches(whole + with_checksum(damaged))
    assert [next(reader).offset for _ in range(3)] == [0, 1, 2]
    with pytest.raises(DataDamaged):
        next(reader)


def one_record(
    record: bytes, *, count: int = 1, last_delta: int = 0, attributes: int = 0, base_offset: int = 0
) -> bytes:
    inner = struct.pack(">hiqqqhii", attributes, last_delta, 1000, 1000, -1, -1, -1, count) + record
    return with_checksum(struct.pack(">qiibI", base_offset, 0, 0, 2, 0) + inner)


EMPTY_RECORD = bytes.fromhex("0c 00 00 00 01 01 00")
"""Length 6; attributes, timestamp and offset 0; no key, no value, no headers."""


def test_a_record_without_key_and_value_is_valid() -> None:
    assert list(decode_record_batches(one_record(EMPTY_RECORD))) == [Record(0, 1000, None, None)]


def test_headers_are_passed_over() -> None:
    record = bytes.fromhex("00 00 00 02 6b 02 76 04 02 61 01 02 62 02 63")
    assert list(decode_record_batches(one_record(bytes([2 * len(record)]) + record))) == [
        Record(0, 1000, b"k", b"v")
    ]


@pytest.mark.parametrize(
    "batch",
    [
        one_record(EMPTY_RECORD, count=-1),
        one_record(EMPTY_RECORD, count=0),
        one_record(EMPTY_RECORD, count=2, last_delta=1),
        one_record(EMPTY_RECORD + EMPTY_RECORD, count=2, last_delta=1),
        one_record(EMPTY_RECORD, count=2**31 - 1, last_delta=2**31 - 1),
        one_record(EMPTY_RECORD, last_delta=-1),
        one_record(EMPTY_RECORD, attributes=1),
        one_record(EMPTY_RECORD, attributes=0x20),
        one_record(EMPTY_RECORD, base_offset=-1),
        one_record(b"", count=0, last_delta=-1),
        one_record(bytes.fromhex("0c 01 00 00 01 01 00")),
        one_record(bytes.fromhex("0c 00 00 02 01 01 00")),
        one_record(bytes.fromhex("0c 00 00 01 01 01 00")),
        one_record(bytes.fromhex("0c 00 00 00 03 01 00")),
        one_record(bytes.fromhex("0c 00 00 00 7e 01 00")),
        one_record(bytes.fromhex("0c 00 00 00 01 01 01")),
        one_record(bytes.fromhex("0c 00 00 00 01 01 02")),
        one_record(bytes.fromhex("0e 00 00 00 01 01 02 01 01")),
        one_record(bytes.fromhex("0b 00 00 00 01 01 00")),
        one_record(bytes.fromhex("7e 00 00 00 01 01 00")),
    ],
)
def test_a_batch_that_contradicts_itself_is_damage_even_with_a_right_checksum(batch: bytes) -> None:
    with pytest.raises(DataDamaged):
        list(decode_record_batches(batch))


@given(st.data())
def test_damage_below_a_right_checksum_is_an_error_or_reads_as_records_in_order(
    data: st.DataObject,
) -> None:
    batch = bytearray(plain_batch(3, 7))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(INNER_AT, len(batch) - 1))
        batch[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    try:
        records = list(decode_record_batches(with_checksum(batch)))
    except DataDamaged:
        return
    last_delta = struct.unpack_from(">i", batch, INNER_AT + 2)[0]
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    assert all(7 <= offset <= 7 + last_delta for offset in offsets)


@given(st.binary(max_size=300))
def test_garbage_is_never_a_batch(garbage: bytes) -> None:
    for data in (garbage, plain_batch(1) + garbage):
        if garbage:
            with pytest.raises(DataDamaged):
                list(decode_record_batches(data))


def test_values_that_are_encoded_already_are_framed_as_they_are() -> None:
    cell = StoredCell(0, uuid.UUID(int=1).bytes, "BASE", 1, 1_000_000, b"")
    batch = frame_records(
        [cell],
        [row_key_text(cell.row_key)],
        [b"x" * 9_000],
        base_offset=0,
        next_offset=1,
        leader_epoch=9,
    )
    assert list(decode_record_batches(batch)) == [
        Record(0, 1000, row_key_text(cell.row_key), b"x" * 9_000)
    ]
