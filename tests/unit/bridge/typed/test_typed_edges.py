"""Edges of typed columns: the least and the most of a type, of versions, and of a log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellfeed.bridge.typed import versions
from cellfeed.bridge.typed.body_encoder import BodyEncoder
from cellfeed.bridge.typed.body_schema import body_schema
from cellfeed.bridge.typed.mismatch import SchemaMismatch
from cellfeed.bridge.typed.rejected_cells import note_rejected, rejected_cells, try_again
from cellfeed.bridge.typed.stored_columns import Settings
from cellfeed.bridge.typed.typed_column import TypedColumns
from cellfeed.bridge.typed.versions import register
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import IncompatibleSchema, InvalidRequest
from tests.support.typed_versions import PARK, V1, V2, put


@pytest.fixture
def datastore(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path) as opened:
        yield opened


def schema(kind: object) -> str:
    fields = [{"name": "n", "type": kind}]
    return json.dumps({"type": "record", "name": "Trip", "fields": fields})


@pytest.mark.parametrize(("kind", "bits"), [("int", 31), ("long", 63)])
def test_an_integer_has_as_many_bits_as_its_type(kind: str, bits: int) -> None:
    encoder = BodyEncoder(body_schema(schema(kind)).root)
    for number in (-(1 << bits), (1 << bits) - 1):
        assert encoder.encode({"n": number})
    for number in (-(1 << bits) - 1, 1 << bits):
        with pytest.raises(SchemaMismatch, match="beyond"):
            encoder.encode({"n": number})


@pytest.mark.parametrize(("size", "digits"), [(1, 2), (3, 6), (4, 9), (8, 18)])
def test_a_decimal_of_fixed_size_has_digits_that_surely_fit(size: int, digits: int) -> None:
    def declared(precision: int) -> Any:
        fixed = {"type": "fixed", "name": "F", "size": size, "logicalType": "decimal"}
        return body_schema(schema({**fixed, "precision": precision, "scale": 0}))

    nines = "9" * digits
    assert BodyEncoder(declared(digits).root).encode({"n": f"-{nines}"})
    with pytest.raises(InvalidRequest):
        declared(digits + 1)


def test_a_column_has_at_most_so_many_versions(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "VERSIONS_MAX", 1)
    first = register(datastore.state, "BASE", V1, Settings())
    with pytest.raises(IncompatibleSchema, match="has 1 versions"):
        register(datastore.state, "BASE", V2, Settings())
    assert register(datastore.state, "BASE", V1, Settings()) == first


def test_the_id_of_an_envelope_belongs_to_no_other_schema(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "schema_id_of", lambda _schema: 77)
    assert register(datastore.state, "BASE", V1, Settings()).schema_id == 78


def note(datastore: Datastore, shard: int, added_id: int) -> None:
    [cell] = datastore.engine.scan(shard, added_id, 1)
    note_rejected(datastore.state, "BASE", shard, [(cell, "fare is secret")])


def test_the_first_cell_of_a_log_is_there_and_the_one_before_it_is_trimmed(
    datastore: Datastore,
) -> None:
    register(datastore.state, "BASE", V1, PARK)
    places = put(datastore, {"fare": 1}, {"fare": 2}, {"fare": 3})
    shard = places[0][0]
    note(datastore, shard, 0)
    note(datastore, shard, 1)
    assert datastore.trim(shard, 1) == 1
    tried = try_again(datastore.engine, TypedColumns(datastore.state))
    assert [cell.added_id for cell in tried.fits] == [1]
    assert [cell.added_id for cell in tried.trimmed] == [0]


def test_a_reason_is_not_listed_of_a_row_that_was_erased_meanwhile(datastore: Datastore) -> None:
    places = put(datastore, {"fare": 1})
    shard, added_id = places[0]
    [cell] = datastore.engine.scan(shard, added_id, 1)
    [stored] = datastore.get_cells_for_shard(shard, 0, 10).cells
    datastore.erase_row(stored.row_key)
    note_rejected(datastore.state, "BASE", shard, [(cell, "fare is secret")])
    assert list(rejected_cells(datastore.state)) == []
