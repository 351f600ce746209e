"""Bodies as typed columns: exactly those that fit the schema, and each value as it was put."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellfeed.bridge.typed.body_encoder import BodyEncoder, decoded
from cellfeed.bridge.typed.body_schema import body_schema
from cellfeed.bridge.typed.mismatch import SchemaMismatch
from cellfeed.consumers.lake.typed.bodies import ColumnBodies
from cellfeed.consumers.lake.typed.merged_schema import column_names
from cellfeed.consumers.lake.typed.restored_bodies import RestoredBodies, plain
from cellfeed.store.cells.canonical_json import canonical
from tests.support.json_values import BODIES, SCALARS
from tests.support.typed_schemas import Drawn, records


def restored(column: ColumnBodies, versions: list[str], bodies: list[bytes]) -> dict[int, bytes]:
    """By place, from the table that the rows make."""
    rows = column.rows(bodies)
    restore = RestoredBodies(versions)
    table = pa.Table.from_arrays(rows.columns, schema=pa.schema(column.schema.fields))
    found = table.to_pylist() if table.num_columns else [{} for _ in rows.places]
    assert sorted([*rows.places, *(place for place, _ in rows.unfit)]) == list(range(len(bodies)))
    return {
        place: restore.body(version, row)
        for place, version, row in zip(rows.places, rows.versions, found, strict=True)
    }


@settings(max_examples=40)
@given(records(), st.data())
def test_each_body_that_the_encoder_takes_is_a_row_and_is_read_back(
    drawn: Drawn, data: st.DataObject
) -> None:
    bodies = []
    for _ in range(data.draw(st.integers(1, 4))):
        body = data.draw(drawn.values | drawn.values | data.draw(records()).values | BODIES)
        if body and data.draw(st.integers(0, 3)) == 0:
            name = data.draw(st.sampled_from(sorted(body)))
            body = {**body, name: data.draw(SCALARS | st.just([]) | st.just({}))}
        bodies.append(canonical(body))
    text = json.dumps(drawn.schema)
    encoder = BodyEncoder(body_schema(text).root)
    fits = set()
    for place, body_json in enumerate(bodies):
        try:
            encoder.encode(decoded(body_json))
            fits.add(place)
        except SchemaMismatch:
            pass
    found = restored(ColumnBodies("C", [text]), [text], bodies)
    assert found == {place: plain(bodies[place]) for place in fits}


def schema(*fields: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": list(fields)})


INNER = {"type": "record", "name": "Inner", "fields": [{"name": "a", "type": "int"}]}
V1 = schema({"name": "n", "type": "int"}, {"name": "inner", "type": INNER})
V2 = schema(
    {"name": "n", "type": "long"},
    {
        "name": "inner",
        "type": {**INNER, "fields": [*INNER["fields"], {"name": "b", "type": "string"}]},
    },
    {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
)


def test_a_later_version_adds_columns_and_members_and_each_body_has_the_oldest_it_fits() -> None:
    column = ColumnBodies("C", [V1, V2])
    assert column.schema.fields == [
        pa.field("n", pa.int64()),
        pa.field("inner", pa.struct([("a", pa.int64()), ("b", pa.string())])),
        pa.field("day", pa.date32()),
    ]
    bodies = [
        b'{"inner":{"a":1},"n":2}',
        b'{"day":"2026-11-28","inner":{"a":1,"b":"x"},"n":4294967296}',
        b'{"inner":{"a":1,"b":"x"},"n":2}',
        b'{"inner":{"a":1},"n":2.5}',
    ]
    rows = column.rows(bodies)
    assert dict(zip(rows.places, rows.versions, strict=True)) == {0: 1, 1: 2, 2: 2}
    assert [place for place, _ in rows.unfit] == [3]
    assert "n is a number with a fraction" in rows.unfit[0][1]
    assert restored(column, [V1, V2], bodies) == {n: plain(bodies[n]) for n in range(3)}


def test_a_version_that_changes_a_columns_type_is_refused_and_its_bodies_say_so() -> None:
    changed = schema({"name": "n", "type": "double"}, {"name": "inner", "type": INNER})
    column = ColumnBodies("C", [V1, changed])
    assert column.schema.refused == {2: "body.n would change from int64 to double"}
    rows = column.rows([b'{"inner":{"a":1},"n":2}', b'{"inner":{"a":1},"n":2.5}'])
    assert rows.places == [0]
    assert rows.unfit[0][0] == 1
    assert "version 2 of the schema is not taken: body.n would change" in rows.unfit[0][1]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("double", ["2", "2.0", "-0.0", "18014398509481984"], ["9007199254740993", '"2"']),
        ("float", ["0.5", "16777216"], ["0.1", "16777217", "1e300"]),
        ("int", ["2147483647"], ["2147483648", "1.0", "true"]),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            ['"12.34"', '"-0.01"'],
            ['"-0.00"', '"1.2"', '"123.45"', '"01.00"', "1.25"],
        ),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            ['"2026-11-28T20:21:09Z"', '"2026-11-28T20:21:09.000001Z"'],
            ['"2026-11-28T20:21:09.000000Z"', '"2026-02-30T20:21:09Z"', '"2026-11-28T20:21:60Z"'],
        ),
        (
            {"type": "int", "logicalType": "date"},
            ['"0001-01-01"', '"9999-12-31"'],
            ['"0000-01-01"', '"2026-2-1"', '"2026-02-30"'],
        ),
        (
            {"type": "string", "logicalType": "uuid"},
            ['"7d444840-9dc0-11d1-b245-5ffdce74fad2"'],
            ['"7D444840-9dc0-11d1-b245-5ffdce74fad2"', '"7d4448409dc011d1b2455ffdce74fad2"'],
        ),
        (["string", "long"], ['"x"', "5"], ["true"]),
    ],
)
def test_a_value_is_taken_as_it_is_or_not_at_all(
    kind: Any, good: list[str], bad: list[str]
) -> None:
    text = schema({"name": "v", "type": kind})
    bodies = [b'{"v":%s}' % each.encode() for each in [*good, *bad]]
    column = ColumnBodies("C", [text])
    assert len(column.rows(bodies[: len(good)]).places) == len(good), "a whole batch"
    assert restored(column, [text], bodies) == {
        place: plain(bodies[place]) for place in range(len(good))
    }
    for body in bodies[len(good) :]:
        assert column.rows([body]).places == [], body


def test_columns_that_engines_would_confuse_have_names_of_their_own() -> None:
    names = ["Row_Key", "fare", "Fare", "created_day", "body_row_key"]
    assert column_names(names) == [
        "body_Row_Key",
        "fare",
        "Fare_2",
        "body_created_day",
        "body_row_key_2",
    ]
