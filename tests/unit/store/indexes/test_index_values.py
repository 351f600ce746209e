"""Encoded values order as the values do, and come back; a value of another type is unfit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.store.cells.sharding import shard_of, shard_of_text
from cellfeed.store.indexes.values import (
    STRING_BYTES_MAX,
    TYPES,
    WrongType,
    decode,
    encoder,
    shard_text,
)

DECIMALS = st.decimals(min_value=-(10**20) + 1, max_value=10**20 - 1, places=18, allow_nan=False)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "uuid": st.uuids(),
    "datetime": st.datetimes(timezones=st.just(UTC)),
    "string": st.text(max_size=40),
    "int": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "decimal": DECIMALS,
}


@pytest.mark.parametrize("kind", TYPES)
@given(data=st.data())
def test_encoded_values_order_as_the_values_do(kind: str, data: st.DataObject) -> None:
    first, second = data.draw(VALUES[kind]), data.draw(VALUES[kind])
    one: Any = encoder(kind)(first)
    other: Any = encoder(kind)(second)
    assert (one < other, one == other) == (
        (first.encode() < second.encode(), first == second)
        if kind == "string"
        else (first.bytes < second.bytes, first == second)
        if kind == "uuid"
        else (first < second, first == second)
    )


@pytest.mark.parametrize("kind", TYPES)
@given(data=st.data())
def test_decoded_values_encode_to_the_same_bytes(kind: str, data: st.DataObject) -> None:
    encoded = encoder(kind)(data.draw(VALUES[kind]))
    assert encoder(kind)(decode(kind, encoded)) == encoded


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("uuid", "ABCDEF00-0000-0000-0000-000000000001", "abcdef00-0000-0000-0000-000000000001"),
        ("datetime", "2019-03-23 20:21:09", "2019-03-23T20:21:09Z"),
        ("datetime", "2019-03-23T20:21:09.5+02:00", "2019-03-23T18:21:09.500000Z"),
        (
            "datetime",
            datetime(2019, 3, 23, tzinfo=timezone(timedelta(hours=-1))),
            "2019-03-23T01:00:00Z",
        ),
        ("float", -0.0, 0.0),
        ("float", 3, 3.0),
        ("bool", True, True),
        ("decimal", "12.50", "12.5"),
        ("decimal", 12.1, "12.1"),
        ("decimal", "-0", "0"),
        ("decimal", "1E+3", "1000"),
        ("decimal", Decimal("-0.000000000000000001"), "-0.000000000000000001"),
    ],
)
def test_values_are_shown_in_one_form(kind: str, value: object, shown: object) -> None:
    assert decode(kind, encoder(kind)(value)) == shown


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("uuid", "no uuid"),
        ("uuid", 5),
        ("datetime", "yesterday"),
        ("datetime", "9999-12-31T23:59:59-10:00"),
        ("datetime", "0001-01-01T00:00:00+10:00"),
        ("datetime", 5),
        ("string", 5),
        ("string", "x" * (STRING_BYTES_MAX + 1)),
        ("int", True),
        ("int", 1.0),
        ("int", 1 << 63),
        ("float", "1"),
        ("float", (1 << 53) + 1),
        ("float", 10**400),
        ("bool", 1),
        ("decimal", "1e-19"),
        ("decimal", "100000000000000000000"),
        ("decimal", "NaN"),
        ("decimal", "Infinity"),
        ("decimal", "1e999999999"),
        ("decimal", True),
    ],
)
def test_a_value_of_another_type_is_rejected(kind: str, value: object) -> None:
    with pytest.raises(WrongType):
        encoder(kind)(value)


@given(st.uuids())
def test_a_uuid_as_shard_value_belongs_where_a_row_of_that_key_does(value: UUID) -> None:
    assert shard_of_text(shard_text("uuid", encoder("uuid")(str(value))), 16) == shard_of(
        value.bytes, 16
    )


def test_texts_of_any_length_go_to_the_shard_of_kafkas_partitioner() -> None:
    # murmur2 of Kafka's own test (UtilsTest.testMurmur2).
    known = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"abc": 479470107,
    }
    for text, signed in known.items():
        assert shard_of_text(text, 1000) == (signed & 0x7FFFFFFF) % 1000


@given(st.datetimes())
def test_a_datetime_is_shown_as_its_isoformat(value: datetime) -> None:
    assert decode("datetime", encoder("datetime")(value)) == f"{value.isoformat()}Z"
