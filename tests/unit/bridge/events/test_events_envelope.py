"""Envelopes: exact round trips, the same bytes as fastavro makes, and an error for everything
else."""

from __future__ import annotations

import io
import json
import struct
import uuid
from typing import Any

import fastavro
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import cellfeed.schemas
from cellfeed.bridge.events.envelope import AvroFormat, EventFormat, JsonFormat, decode_envelope
from cellfeed.bridge.events.record_keys import record_keys
from cellfeed.bridge.events.varints import read_varint, varint, varint_of_moment
from cellfeed.store.cells import canonical_json
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.sharding import row_key_text
from cellfeed.store.errors import DataDamaged
from tests.support.event_cells import (
    ADDED_IDS,
    BORDERS,
    COLUMNS,
    FORMATS,
    MOMENTS_US,
    REF_KEYS,
    SHARDS,
)
from tests.support.json_values import BODIES

ROW_KEY = uuid.UUID("5f0c7a52-28b4-5d6f-9f1b-3c9a1e0d7b44").bytes
CELL = StoredCell(4711, ROW_KEY, "BASE", -3, 1_700_000_000_123_456, b"")
BODY = '{"fare":12.5,"zone":"Théâtre"}'.encode()
PARSED_SCHEMA = fastavro.parse_schema(cellfeed.schemas.load_avro("cell_envelope"))


def by_fastavro(shard: int, cell: StoredCell, body_json: bytes) -> bytes:
    out = io.BytesIO()
    record = {
        "row_key": uuid.UUID(bytes=cell.row_key),
        "column_name": cell.column_name,
        "ref_key": cell.ref_key,
        "added_id": cell.added_id,
        "shard": shard,
        "created_at": cell.created_at_us,
        "body": body_json.decode(),
    }
    fastavro.schemaless_writer(out, PARSED_SCHEMA, record)
    return out.getvalue()


@given(st.integers(-(1 << 63), (1 << 63) - 1) | st.sampled_from(BORDERS), st.binary(max_size=3))
def test_varints_round_trip_in_the_shortest_form(value: int, behind: bytes) -> None:
    encoded = varint(value)
    assert len(encoded) == max(1, -(-((value << 1) ^ (value >> 63)).bit_length() // 7))
    assert read_varint(encoded + behind, 0) == (value, len(encoded))
    if 0 <= value < 1 << 62:
        assert varint_of_moment(value) == encoded


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\x80",
        b"\xff" * 9,
        b"\xff" * 10 + b"\x01",
        b"\xff" * 9 + b"\x02",
        b"\x80\x00",
        b"\x81\x80\x00",
    ],
)
def test_a_varint_that_is_cut_too_big_or_stretched_is_damage(damaged: bytes) -> None:
    with pytest.raises(DataDamaged):
        read_varint(damaged, 0)


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=100))
def test_record_keys_are_the_row_keys_as_text(row_keys: list[bytes]) -> None:
    assert record_keys(row_keys) == [str(uuid.UUID(bytes=row_key)).encode() for row_key in row_keys]


@given(SHARDS, ADDED_IDS, COLUMNS, REF_KEYS, MOMENTS_US, BODIES)
def test_avro_envelopes_equal_fastavros_in_both_directions(
    shard: int, added_id: int, column: str, ref_key: int, created_at_us: int, body: dict[str, Any]
) -> None:
    cell, text = (
        StoredCell(added_id, uuid.uuid4().bytes, column, ref_key, created_at_us, b""),
        canonical_json.canonical(body),
    )
    mine = AvroFormat(7).encode(shard, cell, row_key_text(cell.row_key), text)
    assert mine == b"\x00\x00\x00\x00\x07" + by_fastavro(shard, cell, text)
    read: Any = fastavro.schemaless_reader(io.BytesIO(mine[5:]), PARSED_SCHEMA, None)
    assert (read["added_id"], read["shard"], read["row_key"].bytes, read["body"]) == (
        added_id,
        shard,
        cell.row_key,
        text.decode(),
    )


@given(SHARDS, ADDED_IDS, COLUMNS, REF_KEYS, MOMENTS_US, BODIES)
def test_json_envelopes_are_one_object_with_sorted_keys(
    shard: int, added_id: int, column: str, ref_key: int, created_at_us: int, body: dict[str, Any]
) -> None:
    cell, text = (
        StoredCell(added_id, ROW_KEY, column, ref_key, created_at_us, b""),
        canonical_json.canonical(body),
    )
    value = json.loads(JsonFormat().encode(shard, cell, row_key_text(ROW_KEY), text))
    assert (
        list(value)
        == sorted(value)
        == ["added_id", "body", "column_name", "created_at", "ref_key", "row_key", "shard"]
    )
    assert (value["added_id"], value["body"], value["column_name"]) == (
        added_id,
        json.loads(text),
        column,
    )
    assert (value["ref_key"], value["row_key"], value["shard"]) == (
        ref_key,
        str(uuid.UUID(bytes=ROW_KEY)),
        shard,
    )


def test_the_bytes_of_a_known_cell_never_change() -> None:
    key = row_key_text(ROW_KEY)
    assert (
        JsonFormat().encode(7, CELL, key, BODY)
        == (
            '{"added_id":4711,"body":{"fare":12.5,"zone":"Théâtre"},"column_name":"BASE",'
            '"created_at":"2023-11-14T22:13:20.123456Z",'
            '"ref_key":-3,"row_key":"5f0c7a52-28b4-5d6f-9f1b-3c9a1e0d7b44","shard":7}'
        ).encode()
    )
    assert AvroFormat(0x01020304).encode(7, CELL, key, BODY) == b"".join(
        [
            bytes.fromhex("00 01020304 48"),
            key,
            bytes.fromhex("08 42415345 05 ce49 0e 8089818283898506"),
            varint(len(BODY)),
            BODY,
        ]
    )


@pytest.mark.parametrize("event_format", FORMATS, ids=lambda f: f.name)
@given(
    shard=SHARDS,
    added_id=ADDED_IDS,
    column=COLUMNS,
    ref_key=REF_KEYS,
    created_at_us=MOMENTS_US,
    body=BODIES,
)
@example(
    shard=0,
    added_id=0,
    column='","created_at":"',
    ref_key=0,
    created_at_us=0,
    body={'},"column_name":"': '},"column_name":"x","created_at":"'},
)
@example(
    shard=0,
    added_id=0,
    column="\\",
    ref_key=0,
    created_at_us=0,
    body={"\\": '\\"},"body":{}', "big": 2**64 - 1, "small": 5e-324},
)
def test_a_cell_is_decoded_exactly_from_its_value(
    event_format: EventFormat,
    shard: int,
    added_id: int,
    column: str,
    ref_key: int,
    created_at_us: int,
    body: dict[str, Any],
) -> None:
    cell, text = (
        StoredCell(added_id, ROW_KEY, column, ref_key, created_at_us, b""),
        canonical_json.canonical(body),
    )
    value = event_format.encode(shard, cell, row_key_text(ROW_KEY), text)
    assert decode_envelope(value) == (
        shard,
        added_id,
        ROW_KEY,
        column,
        ref_key,
        created_at_us,
        text,
    )


@pytest.mark.parametrize("event_format", FORMATS, ids=lambda f: f.name)
def test_a_cut_or_lengthened_value_is_never_taken_for_a_cell(event_format: EventFormat) -> None:
    cell = CELL._replace(column_name='odd ","body":')
    value = event_format.encode(3, cell, row_key_text(cell.row_key), b'{"a":",\\"column_name\\":"}')
    assert decode_envelope(value).body_json == b'{"a":",\\"column_name\\":"}'
    for length in range(len(value)):
        with pytest.raises(DataDamaged):
            decode_envelope(value[:length])
    for behind in (b" ", b"\n", b"\x00", b"}", value):
        with pytest.raises(DataDamaged):
            decode_envelope(value + behind)
    with pytest.raises(DataDamaged, match="without a value"):
        decode_envelope(None)


@pytest.mark.parametrize("event_format", FORMATS, ids=lambda f: f.name)
@given(data=st.data())
def test_encoding_a_decoded_value_gives_the_same_bytes(
    event_format: EventFormat, data: st.DataObject
) -> None:
    """Damage anywhere is an error, or it makes another whole and valid value: never a value that is
    read in two ways, never another exception."""
    value = bytearray(event_format.encode(7, CELL, row_key_text(ROW_KEY), BODY))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(value) - 1))
        value[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        if not value:
            break
    damaged = bytes(value)
    try:
        event = decode_envelope(damaged)
    except DataDamaged:
        return
    as_cell = StoredCell(
        event.added_id, event.row_key, event.column_name, event.ref_key, event.created_at_us, b""
    )
    written_by = (
        AvroFormat(struct.unpack(">I", damaged[1:5])[0]) if damaged[0] == 0 else JsonFormat()
    )
    assert (
        written_by.encode(event.shard, as_cell, row_key_text(event.row_key), event.body_json)
        == damaged
    )


@given(st.binary(max_size=200))
def test_garbage_is_never_taken_for_a_cell(garbage: bytes) -> None:
    for value in (
        garbage,
        b"\x00\x00\x00\x00\x01" + garbage,
        b"\x00\x00\x00\x00\x01\x48" + row_key_text(ROW_KEY) + garbage,
        b"{" + garbage,
    ):
        with pytest.raises(DataDamaged):
            decode_envelope(value)


def avro_value(**changed: Any) -> bytes:
    parts: dict[str, Any] = {
        "row_key": row_key_text(ROW_KEY),
        "column": b"BASE",
        "ref_key": 1,
        "added_id": 5,
        "shard": 3,
        "created_at": 1_700_000_000_000_000,
        "body": b"{}",
        **changed,
    }
    return b"\x00\x00\x00\x00\x01" + b"".join(
        varint(len(part)) + part if isinstance(part, bytes) else varint(part)
        for part in parts.values()
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"row_key": row_key_text(ROW_KEY).upper()},
        {"row_key": b"5f0c7a5228b45d6f9f1b3c9a1e0d7b44----"},
        {"row_key": b""},
        {"column": b""},
        {"column": b"\xff"},
        {"column": b"a\x00b"},
        {"column": b"x" * 129},
        {"added_id": -1},
        {"added_id": 1 << 47},
        {"shard": -1},
        {"shard": 65_536},
        {"created_at": -1},
        {"created_at": 1 << 62},
        {"body": b""},
        {"body": b"[]"},
        {"body": b"null"},
        {"body": b'{"a":}'},
        {"body": b'{"a":"\xff"}'},
        {"body": b'{"a":1}{'},
        {"body": b'{"a":"' + b"x" * (1 << 20) + b'"}'},
    ],
    ids=lambda changed: str(changed)[:50],
)
def test_avro_bytes_that_decode_to_no_cell_are_damage(changed: dict[str, Any]) -> None:
    assert decode_envelope(avro_value()).shard == 3
    with pytest.raises(DataDamaged):
        decode_envelope(avro_value(**changed))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"added_id":4711', b'"added_id":04711'),
        (b'"added_id":4711', b'"added_id":4711.0'),
        (b'"added_id":4711', b'"added_id":true'),
        (b'"added_id":4711', b'"added_id":999999999999999999'),
        (b'"body":{', b'"body": {'),
        (b"12.5", b"12.50"),
        (b'{"fare":12.5,', b'{"fare":12.5,"fare":12.5,'),
        (
            b'"fare":12.5,"zone":"Th\xc3\xa9\xc3\xa2tre"',
            b'"zone":"Th\xc3\xa9\xc3\xa2tre","fare":12.5',
        ),
        (b"\xc3\xa9", b"\\u00e9"),
        (b'"BASE"', b'"B\\u0041SE"'),
        (b'"BASE"', b'"\\ud800"'),
        (b".123456Z", b".123Z"),
        (b".123456Z", b".123456+00:00"),
        (b"2023-11-14", b"2023-02-30"),
        (b"22:13:20", b"24:00:00"),
        (b'"ref_key":-3', b'"ref_key":-9223372036854775809'),
        (b'"ref_key":-3', b'"ref_key":-0'),
        (b"5f0c7a52", b"5F0C7A52"),
        (b'"shard":7', b'"shard":65536'),
        (b'"shard":7', b'"shard":7,"more":1'),
    ],
)
def test_json_that_another_program_has_rewritten_is_not_taken(before: bytes, after: bytes) -> None:
    value = JsonFormat().encode(7, CELL, row_key_text(ROW_KEY), BODY)
    assert value.count(before) == 1
    with pytest.raises(DataDamaged):
        decode_envelope(value.replace(before, after))
