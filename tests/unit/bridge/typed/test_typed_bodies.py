"""Bodies by Avro schemas: exactly or not at all."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cellfeed.schemas
from cellfeed.bridge.typed.body_encoder import BodyEncoder, decoded
from cellfeed.bridge.typed.body_schema import body_schema
from cellfeed.bridge.typed.mismatch import SchemaMismatch
from cellfeed.loading.records import FileFormat, read_records
from cellfeed.loading.taxi import cells_of_trip, shipped_csv
from cellfeed.store.cells.canonical_json import canonical
from cellfeed.store.errors import InvalidRequest
from tests.support.json_values import BODIES, SCALARS
from tests.support.typed_schemas import AvroReader, Drawn, records, same


def encoder_of(schema: Any) -> BodyEncoder:
    return BodyEncoder(body_schema(json.dumps(schema)).root)


def read_back(schema: Any, data: bytes) -> Any:
    reader = AvroReader(data)
    found = reader.read(schema)
    assert reader.at == len(data)
    return found


@given(records(), st.data())
def test_a_body_that_fits_is_read_back_exactly(drawn: Drawn, data: st.DataObject) -> None:
    body = data.draw(drawn.values)
    encoded = encoder_of(drawn.schema).encode(decoded(canonical(body)))
    assert same(read_back(drawn.schema, encoded), body)
    rest = io.BytesIO(encoded)
    fastavro.schemaless_reader(rest, fastavro.parse_schema(drawn.schema, _write_hint=False), None)
    assert not rest.read()


@given(records(), st.data())
def test_any_body_is_read_back_exactly_or_does_not_fit(drawn: Drawn, data: st.DataObject) -> None:
    """Bodies of another schema, and of one that is like it: a member more, one less, another
    value."""
    body = data.draw(drawn.values | data.draw(records()).values | BODIES)
    if data.draw(st.booleans()) and body:
        name = data.draw(st.sampled_from(sorted(body)))
        body = {**body, name: data.draw(SCALARS | st.just([]) | st.just({}))}
    body_json = canonical(body)
    try:
        encoded = encoder_of(drawn.schema).encode(decoded(body_json))
    except SchemaMismatch:
        return
    assert same(read_back(drawn.schema, encoded), json.loads(body_json))


FIELDS = {
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "text": "string",
    "flag": "boolean",
    "day": {"type": "int", "logicalType": "date"},
    "at": {"type": "long", "logicalType": "timestamp-micros"},
    "at_ms": {"type": "long", "logicalType": "timestamp-millis"},
    "clock": {"type": "long", "logicalType": "local-timestamp-micros"},
    "money": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
    "id": {"type": "string", "logicalType": "uuid"},
    "kind": {"type": "enum", "name": "Kind", "symbols": ["CARD", "CASH"]},
    "items": {"type": "array", "items": "long"},
    "by_name": {"type": "map", "values": "long"},
    "maybe": ["null", "long"],
}
"""One field each of a record."""


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("int", 1 << 31, "beyond int's 32 bits"),
        ("long", 1 << 63, "beyond long's 64 bits"),
        ("long", 1.0, "is a number with a fraction, not an integer"),
        ("long", True, "is true or false, not an integer"),
        ("long", "1", "is text, not an integer"),
        ("float", 0.1, "float does not hold exactly"),
        ("float", 1e300, "beyond float"),
        ("double", (1 << 53) + 1, "double does not hold exactly"),
        ("double", False, "not a number"),
        ("text", None, "is null, not text"),
        ("flag", 0, "not true or false"),
        ("day", "2019-3-23", "no date as"),
        ("day", "2019-02-29", "no date as"),
        ("at", "2019-03-23T20:21:09", "no moment as 2019-03-23T20:21:09Z"),
        ("at", "2019-03-23T20:21:09+00:00", "no moment as"),
        ("at", "2019-03-23T20:21:09.000000Z", "no moment as"),
        ("at", "2019-03-23T20:21:09.123Z", "no moment as"),
        ("at_ms", "2019-03-23T20:21:09Z", "no moment as 2019-03-23T20:21:09.000Z"),
        ("clock", "2019-03-23T20:21:09Z", "no moment as 2019-03-23T20:21:09"),
        ("clock", "2019-03-23 20:21:09", "no moment as"),
        ("clock", 1_553_372_469, "no moment as"),
        ("money", 12.9, "no decimal with 2 digits behind the point (as text)"),
        ("money", "12.9", "no decimal"),
        ("money", "-0.00", "no decimal"),
        ("money", "012.90", "no decimal"),
        ("money", "12345.67", "no decimal"),
        ("money", "٣.00", "no decimal"),
        ("id", "5F0C7A52-28b4-5d6f-9f1b-3c9a1e0d7b44", "no UUID"),
        ("kind", "card", "none of the symbols of enum Kind"),
        ("items", [1, 2, "x"], "items.2 is text"),
        ("items", {}, "not a list"),
        ("by_name", {"a": 1, "b": 1.5}, "by_name.b is a number with a fraction"),
        ("maybe", "x", "is text, none of [null, long]"),
    ],
)
def test_a_lossy_conversion_is_a_mismatch_whose_reason_names_the_member(
    field: str, value: Any, reason: str
) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": field, "type": FIELDS[field]}]}
    with pytest.raises(SchemaMismatch) as caught:
        encoder_of(schema).encode({field: value})
    assert reason in str(caught.value)
    assert str(caught.value).startswith(field)


def test_a_missing_member_fits_only_where_the_default_is_null_and_null_does_not_fit_there() -> None:
    optional = {"name": "note", "type": ["null", "string"], "default": None}
    encoder = encoder_of(
        {
            "type": "record",
            "name": "R",
            "fields": [{"name": "n", "type": "long", "default": 0}, optional],
        }
    )
    assert encoder.encode({"n": 0}) == b"\x00\x00"
    assert encoder.encode({"n": 0, "note": "x"}) == b"\x00\x02\x02x"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "n is missing"),
        (
            {"n": 1, "note": None},
            (
                "note is null, and null stands for a member that is not there, as the field's"
                " default is null"
            ),
        ),
        ({"n": 1, "more": 1}, "more is a member that the schema does not have"),
        ({"n": 1, "note": {"a": 1}}, "note is an object, none of [null, string]"),
    ]
    for body, reason in wrong:
        with pytest.raises(SchemaMismatch, match=reason.replace("[", r"\[")):
            encoder.encode(body)


def test_a_recursive_type_is_encoded() -> None:
    schema = {
        "type": "record",
        "name": "Node",
        "namespace": "a.b",
        "fields": [{"name": "next", "type": ["null", "Node"], "default": None}],
    }
    encoder = encoder_of(schema)
    assert encoder.encode({"next": {"next": {}}}) == b"\x02\x02\x00"
    with pytest.raises(SchemaMismatch, match=r"next\.next\.x is a member"):
        encoder.encode({"next": {"next": {"x": 1}}})


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("not json", "it is no Avro schema"),
        ('"string"', "the schema of a body is a record"),
        ('{"type": "record", "name": "R"}', "it is no Avro schema"),
        ({"x": "bytes"}, "body.x: JSON has no bytes"),
        ({"x": {"type": "fixed", "name": "F", "size": 4}}, "body.x: JSON has no bytes"),
        (
            {"x": {"type": "long", "logicalType": "time-micros"}},
            "body.x: logical type 'time-micros' on long is not known here",
        ),
        (
            {"x": {"type": "string", "logicalType": "decimal", "precision": 2}},
            "logical type 'decimal' on string",
        ),
        (
            {
                "x": {
                    "type": "fixed",
                    "name": "F",
                    "size": 1,
                    "logicalType": "decimal",
                    "precision": 3,
                }
            },
            "precision",
        ),
        ({"x": {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}}, "scale"),
        (
            {"x": ["string", {"type": "string", "logicalType": "uuid"}]},
            "body.x: a union has different types",
        ),
        (
            {"x": {"type": "record", "name": "RCell", "fields": []}},
            "the name RCell is that of the whole cell's record",
        ),
        ({"x": "Unknown"}, "it is no Avro schema"),
    ],
)
def test_a_schema_that_json_cannot_be_is_refused_with_the_field(schema: Any, reason: str) -> None:
    text = (
        schema
        if isinstance(schema, str)
        else json.dumps(
            {
                "type": "record",
                "name": "R",
                "fields": [{"name": n, "type": t} for n, t in schema.items()],
            }
        )
    )
    with pytest.raises(InvalidRequest) as caught:
        body_schema(text)
    assert reason in str(caught.value)


def test_every_shipped_trip_fits_the_shipped_schema() -> None:
    schema = cellfeed.schemas.load_avro("taxi_trip")
    encoder = encoder_of(schema)
    tried = 0
    for record in read_records(shipped_csv(), FileFormat.CSV):
        assert record.fields is not None
        body = json.loads(canonical(cells_of_trip(record.fields)[0].body))
        assert same(read_back(schema, encoder.encode(body)), body)
        tried += 1
    assert tried == 6_433
