"""Row keys out of a record's values: frozen by golden vectors, and different for different values
with any characters in them."""

from __future__ import annotations

from uuid import NAMESPACE_URL, UUID, uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.loading.row_keys import ROW_KEY_NAMESPACE, record_name, row_key_from
from cellfeed.loading.taxi import trip_row_key
from cellfeed.store.errors import InvalidRowKey

VALUES = st.lists(st.text(alphabet="ab|\\é", max_size=4), min_size=2, max_size=2)


def test_row_keys_are_made_in_the_documented_namespace() -> None:
    assert (
        uuid5(NAMESPACE_URL, "urn:cellfeed:row-key")
        == ROW_KEY_NAMESPACE
        == UUID("f0d9efc5-7322-56b1-b18b-69873e69429d")
    )


@pytest.mark.parametrize(
    ("fields", "name", "row_key"),
    [
        ({"a": "x", "b": "y"}, "x|y", "69592837-9e85-57b2-af2d-ef3710804424"),
        ({"a": "x|y", "b": ""}, "x\\|y|", "73fcae99-e325-51d0-b331-243f38e4914e"),
        ({"a": "\\", "b": "|"}, "\\\\|\\|", "43672dd4-facc-56dc-83bf-28e85089c6b9"),
        ({"a": 1, "b": 1.5}, "1|1.5", "d5d809f9-979a-59a0-a591-038128583550"),
        (
            {"a": True, "b": {"z": 1, "a": [None]}},
            'true|{"a":[null],"z":1}',
            "2386aaa3-7f08-5cc7-a97c-ce3e398d1f17",
        ),
        (
            {"a": "Théâtre", "b": "\U0001f695"},
            "Théâtre|\U0001f695",
            "c6e88e9b-7c60-5b3d-bfe9-e13945b3a6b7",
        ),
    ],
)
def test_names_and_row_keys_are_frozen(fields: dict[str, object], name: str, row_key: str) -> None:
    assert record_name(fields, ["a", "b"]) == name
    assert row_key_from(fields, ["a", "b"]) == UUID(row_key)


def test_the_row_key_of_a_taxi_trip_is_frozen() -> None:
    trip = {
        "pickup": "2019-03-23 20:21:09",
        "dropoff": "2019-03-23 20:27:24",
        "pickup_zone": "Lenox Hill West",
        "dropoff_zone": "UN/Turtle Bay South",
        "total": "12.95",
    }
    assert trip_row_key(trip) == UUID("74766955-3e15-52d2-82dd-016f0f8bcdfd")


def test_row_keys_depend_on_the_order_of_the_asked_fields_and_not_of_the_records() -> None:
    assert row_key_from({"a": "1", "b": "2"}, ["a", "b"]) == row_key_from(
        {"b": "2", "a": "1"}, ["a", "b"]
    )
    assert row_key_from({"a": "1", "b": "2"}, ["b", "a"]) != row_key_from(
        {"a": "1", "b": "2"}, ["a", "b"]
    )


@given(VALUES, VALUES)
def test_different_values_never_make_the_same_name(one: list[str], other: list[str]) -> None:
    names = [record_name(dict(zip("ab", values, strict=True)), "ab") for values in (one, other)]
    assert (names[0] == names[1]) == (one == other)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"a": "x"}, "'b', part of the row key, is missing"),
        ({"a": "x", "b": None}, "'b', part of the row key, is null"),
    ],
)
def test_a_value_that_is_not_there_is_refused_by_its_name(
    fields: dict[str, object], says: str
) -> None:
    with pytest.raises(InvalidRowKey, match=says):
        row_key_from(fields, ["a", "b"])
