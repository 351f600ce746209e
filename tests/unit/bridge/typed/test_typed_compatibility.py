"""Which schema may follow which: the table of rules, and that a reader which may read does read."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.bridge.typed.avro_types import AvroType
from cellfeed.bridge.typed.body_encoder import BodyEncoder, decoded
from cellfeed.bridge.typed.body_schema import body_schema
from cellfeed.bridge.typed.compatibility import breaks, cannot_read
from cellfeed.store.cells.canonical_json import canonical
from tests.support.typed_schemas import Drawn, records

OLD: list[tuple[str, Any]] = [
    ("n", "long"),
    ("maybe", {"type": ["null", "string"], "default": None}),
    ("kind", {"type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"], "default": "A"}}),
    ("strict", {"type": {"type": "enum", "name": "Strict", "symbols": ["A", "B"]}}),
    ("money", {"type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}}),
    ("list", {"type": {"type": "array", "items": "int"}}),
    (
        "inner",
        {"type": {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "long"}]}},
    ),
    ("small", "int"),
    ("choice", {"type": ["long", "string"]}),
]


def schema_of(fields: list[tuple[str, Any]], name: str = "R") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [
            {"name": field, **(kind if isinstance(kind, dict) else {"type": kind})}
            for field, kind in fields
        ],
    }


def root_of(schema: Any) -> AvroType:
    return body_schema(json.dumps(schema)).root


def with_field(field: str, kind: Any) -> list[tuple[str, Any]]:
    return [(name, kind if name == field else old) for name, old in OLD]


BOTH, NEITHER, BACKWARD, FORWARD = (
    {"FULL", "BACKWARD", "FORWARD"},
    set[str](),
    {"BACKWARD"},
    {"FORWARD"},
)
CASES = [
    ("nothing changed", OLD, BOTH),
    ("a field with a default", [*OLD, ("more", {"type": "long", "default": 0})], BOTH),
    (
        "a field that may be missing",
        [*OLD, ("more", {"type": ["null", "long"], "default": None})],
        BOTH,
    ),
    ("a field without a default", [*OLD, ("more", "long")], FORWARD),
    ("a field with a default gone", [each for each in OLD if each[0] != "maybe"], BOTH),
    ("a field without a default gone", [each for each in OLD if each[0] != "n"], BACKWARD),
    ("fields in another order", OLD[::-1], BOTH),
    ("int becomes long", with_field("small", "long"), BACKWARD),
    ("long becomes int", with_field("n", "int"), FORWARD),
    ("long becomes double", with_field("n", "double"), NEITHER),
    ("int becomes float", with_field("small", "float"), NEITHER),
    ("int becomes double", with_field("small", "double"), BACKWARD),
    ("int becomes text", with_field("small", "string"), NEITHER),
    ("a branch more", with_field("choice", {"type": ["long", "string", "boolean"]}), BACKWARD),
    ("a branch less", with_field("choice", {"type": ["long"]}), FORWARD),
    ("may be null now", with_field("n", {"type": ["null", "long"]}), BACKWARD),
    (
        "a symbol more, with a default",
        with_field(
            "kind",
            {"type": {"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"], "default": "A"}},
        ),
        BOTH,
    ),
    (
        "a symbol more, without one",
        with_field(
            "strict", {"type": {"type": "enum", "name": "Strict", "symbols": ["A", "B", "C"]}}
        ),
        BACKWARD,
    ),
    (
        "a symbol less, without one",
        with_field("strict", {"type": {"type": "enum", "name": "Strict", "symbols": ["A"]}}),
        FORWARD,
    ),
    (
        "another scale",
        with_field(
            "money",
            {"type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 3}},
        ),
        NEITHER,
    ),
    (
        "a long that is a moment now",
        with_field("n", {"type": {"type": "long", "logicalType": "timestamp-micros"}}),
        NEITHER,
    ),
    (
        "items become long",
        with_field("list", {"type": {"type": "array", "items": "long"}}),
        BACKWARD,
    ),
    (
        "a field more within",
        with_field(
            "inner",
            {
                "type": {
                    "type": "record",
                    "name": "Inner",
                    "fields": [{"name": "x", "type": "long"}, {"name": "y", "type": "int"}],
                }
            },
        ),
        FORWARD,
    ),
    (
        "another name within",
        with_field(
            "inner",
            {
                "type": {
                    "type": "record",
                    "name": "Other",
                    "fields": [{"name": "x", "type": "long"}],
                }
            },
        ),
        NEITHER,
    ),
]


@pytest.mark.parametrize(
    ("new", "kept"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_change_keeps_the_rules_that_it_keeps(new: list[tuple[str, Any]], kept: set[str]) -> None:
    old = root_of(schema_of(OLD))
    levels: list[Any] = ["FULL", "BACKWARD", "FORWARD"]
    assert {
        level for level in levels if not list(breaks(root_of(schema_of(new)), [(1, old)], level))
    } == kept


def test_renaming_the_record_keeps_no_compatibility() -> None:
    assert cannot_read(root_of(schema_of(OLD, "Other")), root_of(schema_of(OLD))) == [
        "body: the type's name is Other, not R"
    ]


def test_an_incompatibility_names_field_rule_and_version() -> None:
    old, older = (
        root_of(schema_of(OLD)),
        root_of(schema_of([*OLD, ("gone", {"type": "long", "default": 1})])),
    )
    said = list(
        breaks(root_of(schema_of([*OLD, ("gone", "string")])), [(1, older), (2, old)], "FULL")
    )
    assert said == [
        (
            "body.gone: string is not long: a reader with the new schema could not read records of"
            " version 1 (BACKWARD)"
        ),
        (
            "body.gone: long is not string: a reader with version 1 could not read records of the"
            " new schema (FORWARD)"
        ),
        (
            "body.gone: the field has no default, and is not in the other schema: a reader with the"
            " new schema could not read records of version 2 (BACKWARD)"
        ),
    ], "each earlier version counts, not only the last"


def test_recursive_types_are_compared_once() -> None:
    node = {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "next", "type": ["null", "Node"], "default": None}],
    }
    longer = copy.deepcopy(node)
    longer["fields"].append({"name": "x", "type": "long"})  # type: ignore[attr-defined]
    assert cannot_read(root_of(node), root_of(node)) == []
    assert cannot_read(root_of(longer), root_of(node)) == [
        "body.x: the field has no default, and is not in the other schema"
    ]


def drop_field(fields: list[Any]) -> None:
    if fields:
        fields.pop()


def add_default(fields: list[Any]) -> None:
    fields.append({"name": "added", "type": "long", "default": 7})


def add_plain(fields: list[Any]) -> None:
    fields.append({"name": "added", "type": "long"})


def widen(fields: list[Any]) -> None:
    for field in fields:
        if field["type"] == "int":
            field["type"] = "long"


@given(records(), st.data())
def test_a_reader_that_may_read_does(drawn: Drawn, data: st.DataObject) -> None:
    """Against fastavro's resolution: where nothing is in the way by the rules here, no value is in
    the way there."""
    change: Callable[[list[Any]], None] = data.draw(
        st.sampled_from([drop_field, add_default, add_plain, widen])
    )
    other = copy.deepcopy(drawn.schema)
    change(other["fields"])
    writer, reader = (drawn.schema, other)
    if cannot_read(root_of(reader), root_of(writer)):
        assert change is add_plain
        return
    encoded = BodyEncoder(root_of(writer)).encode(decoded(canonical(data.draw(drawn.values))))
    fastavro.schemaless_reader(
        io.BytesIO(encoded),
        fastavro.parse_schema(writer, _write_hint=False),
        fastavro.parse_schema(reader, _write_hint=False),
    )
