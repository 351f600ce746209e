"""Versions in the datastore: each is a version once, under one id for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cellfeed.bridge.typed.body_schema import BodySchema, body_schema
from cellfeed.bridge.typed.declaration import ColumnSchema, check_schemas
from cellfeed.bridge.typed.stored_columns import Settings, stored_columns
from cellfeed.bridge.typed.versions import register, register_declared
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import (
    IncompatibleSchema,
    InvalidRequest,
)
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from tests.support.typed_versions import NOTE, PARK, V1, V2, V3, trip


def numbers(datastore: Datastore, column: str = "BASE") -> list[tuple[int, int]]:
    return [
        (version.number, version.schema_id)
        for version in stored_columns(datastore.state)[column].versions
    ]


def test_a_schema_is_a_version_once_and_its_id_is_the_same_for_ever(datastore: Datastore) -> None:
    first = register(datastore.state, "BASE", V1, Settings())
    second = register(datastore.state, "BASE", V2, Settings())
    explained = body_schema(
        V1.text.replace('"type":"record"', '"type":"record","doc":"A trip."', 1)
    )
    assert register(datastore.state, "BASE", explained, Settings()) == first, (
        "an explanation makes no version; an older version may be declared again"
    )
    assert numbers(datastore) == [(1, first.schema_id), (2, second.schema_id)]
    assert first.schema_id != second.schema_id


def test_a_used_schema_id_is_not_given_to_another_schema(datastore: Datastore) -> None:
    first = register(datastore.state, "BASE", V1, Settings())
    same_schema = register(datastore.state, "OTHER", V1, Settings())
    assert same_schema.schema_id == first.schema_id + 1
    assert register(datastore.state, "OTHER", V1, Settings()) == same_schema
    assert stored_columns(datastore.state, "OTHER").keys() == {"OTHER"}


def test_a_version_that_breaks_the_rule_is_refused_by_field_rule_and_version(
    datastore: Datastore,
) -> None:
    register(datastore.state, "BASE", V1, Settings())
    register(datastore.state, "BASE", V2, Settings())
    with pytest.raises(IncompatibleSchema) as caught:
        register(
            datastore.state, "BASE", trip(NOTE, {"name": "city", "type": "string"}), Settings()
        )
    assert "column BASE: body.city: the field has no default" in str(caught.value)
    assert "could not read records of version 1 (BACKWARD)" in str(caught.value)
    assert caught.value.exit_code == 3
    assert (
        register(
            datastore.state,
            "BASE",
            trip({"name": "city", "type": "string"}),
            Settings(compatibility="FORWARD"),
        ).number
        == 3
    )
    assert [number for number, _ in numbers(datastore)] == [1, 2, 3]


def test_two_gateways_that_register_at_one_moment_take_turns(
    datastore: Datastore,
) -> None:
    """The second one's commit is refused; it looks again, and is checked against the first."""

    class Racing:
        def __init__(self, *first: BodySchema) -> None:
            self._first = list(first)

        def __getattr__(self, name: str) -> Any:
            return getattr(datastore.state, name)

        def commit(self, write: Any, expect: Any = None) -> Any:
            if self._first:
                register(datastore.state, "BASE", self._first.pop(), Settings())
            return datastore.state.commit(write, expect)

    assert register(Racing(V2), "BASE", V1, Settings()).number == 2
    with pytest.raises(IncompatibleSchema, match="version 3"):
        register(
            Racing(V3), "BASE", trip({"name": "tip", "type": "string", "default": ""}), Settings()
        )
    assert [number for number, _ in numbers(datastore)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("failpoint", "there"), [("typed.before_registered", []), ("typed.after_registered", [1])]
)
def test_a_process_that_dies_while_it_registers_leaves_all_or_nothing(
    datastore: Datastore, failpoint: str, there: list[int]
) -> None:
    set_failpoint(failpoint, "raise")
    with pytest.raises(FailpointReached):
        register(datastore.state, "BASE", V1, PARK)
    assert [
        version.number
        for stored in stored_columns(datastore.state).values()
        for version in stored.versions
    ] == there
    clear_failpoints()
    assert register(datastore.state, "BASE", V1, PARK).number == 1
    assert stored_columns(datastore.state)["BASE"].settings == PARK


def test_a_declared_file_is_read_from_the_run_directory_and_its_faults_are_reported_with_its_name(
    datastore: Datastore, tmp_path: Path
) -> None:
    (tmp_path / "trip.avsc").write_text(V1.text)
    register_declared(
        datastore.state,
        [ColumnSchema("BASE", "trip.avsc"), ColumnSchema("TAXI", "taxi_trip")],
        tmp_path,
    )
    assert stored_columns(datastore.state).keys() == {"BASE", "TAXI"}
    for name, reason in [
        ("none.avsc", "No such file"),
        ("none", "it cannot be read"),
        ("trip.avsc", None),
    ]:
        if reason:
            with pytest.raises(
                InvalidRequest, match=f"schema {name} of column X: it cannot be read"
            ):
                register_declared(datastore.state, [ColumnSchema("X", name)], tmp_path)
    with pytest.raises(InvalidRequest, match="column A: its schema is given twice"):
        check_schemas([ColumnSchema("A", "taxi_trip"), ColumnSchema("A", "taxi_trip")])
