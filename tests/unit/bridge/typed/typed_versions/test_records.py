"""Records are a function of the registered versions alone, in every gateway and exporter."""

from __future__ import annotations

import io
import json
from itertools import permutations
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.bridge.events.record_batch_reader import decode_record_batches
from cellfeed.bridge.events.views import View
from cellfeed.bridge.gateway.log.encode import encode_range
from cellfeed.bridge.gateway.topics.topics import make_topic
from cellfeed.bridge.gateway.topics.typed_topics import TypedTopics
from cellfeed.bridge.typed.stored_columns import Settings, stored_columns
from cellfeed.bridge.typed.typed_column import TypedColumn
from cellfeed.bridge.typed.typed_format import TypedFormat
from cellfeed.bridge.typed.versions import register
from cellfeed.store.cells.sharding import row_key_text
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import (
    StorageUnavailable,
)
from tests.support.log_of_cells import LogOfCells, log_cell
from tests.support.typed_versions import PARK, V1, V2, V3, VERSIONS, StateInMemory, bodies


def read_value(state: StateTable, value: bytes) -> Any:
    """As a client with the registry reads it."""
    registered = TypedTopics(state).by_id(int.from_bytes(value[1:5], "big"))
    assert registered is not None
    return fastavro.schemaless_reader(
        io.BytesIO(value[5:]),
        fastavro.parse_schema(json.loads(registered.text), _write_hint=False),
        None,
    )


@given(
    st.lists(bodies, max_size=12),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from(["envelope", "park"]),
)
def test_a_record_is_the_same_whenever_and_wherever_it_is_encoded(
    drawn: list[dict[str, Any]], known: int, registered: int, unfit: Any
) -> None:
    """One gateway that looked last when ``known`` versions were there, and one that knows all of
    them: the same blocks, once there are ``registered``. And earlier typed records stay as they
    were, byte for byte, when there are more."""
    state = StateInMemory()
    for schema in VERSIONS[: min(known, registered)]:
        register(state, "BASE", schema, Settings(unfit))
    before = TypedFormat(TypedColumn(state, "BASE"))
    for schema in VERSIONS[:registered]:
        register(state, "BASE", schema, Settings(unfit))
    log = LogOfCells(
        [log_cell(number, number, "BASE", number, body) for number, body in enumerate(drawn)]
    )
    records = shown(log, before)
    assert records == shown(log, TypedFormat(TypedColumn(state, "BASE")))
    for schema in VERSIONS:
        register(state, "BASE", schema, Settings(unfit))
    later = shown(log, TypedFormat(TypedColumn(state, "BASE")))
    for number, body in enumerate(drawn):
        first = 1 if body.keys() == {"fare"} else 2 if body.keys() == {"fare", "note"} else 3
        if "odd" not in body and ("tip" in body or first < 3):
            assert read_value(state, later[number])["body"] == {
                **dict.fromkeys(["note"] if first > 1 else []),
                **body,
            }
            assert first > registered or records[number] == later[number]
        elif unfit == "park":
            assert number not in later
            assert number not in records
        else:
            assert json.loads(read_value(state, later[number])["body"]) == body
            assert records[number] == later[number]


def shown(log: LogOfCells, event_format: TypedFormat) -> dict[int, bytes]:
    """Values by offset."""
    topic = make_topic("t", View("BASE"), event_format)
    block = encode_range(log, topic, 0, 0, len(log.cells) + 1, 0)  # type: ignore[arg-type]
    return {
        record.offset: record.value or b""
        for batch in block
        for record in decode_record_batches(batch.data)
    }


def test_no_order_of_looks_shows_a_body_as_unfit_that_a_registered_version_takes(
    datastore: Datastore,
) -> None:
    for looks in permutations(range(3)):
        column = f"C{''.join(map(str, looks))}"
        formats = []
        for schema in (V1, V2, V3):
            register(datastore.state, column, schema, PARK)
            formats.append(TypedFormat(TypedColumn(datastore.state, column)))
        cell = log_cell(0, body={"fare": 1, "note": "x", "tip": 2})
        values = {
            formats[look].encode(
                0, cell, row_key_text(cell.row_key), b'{"fare":1,"note":"x","tip":2}'
            )
            for look in looks
        }
        assert len(values) == 1
        assert b"" not in values


def test_no_body_is_reported_as_rejected_while_the_datastore_is_away(datastore: Datastore) -> None:
    register(datastore.state, "BASE", V1, PARK)

    class Away:
        def __getattr__(self, name: str) -> Any:
            raise StorageUnavailable(f"{name}: away")

    column = TypedColumn(Away(), "BASE", stored_columns(datastore.state)["BASE"])
    cell = log_cell(0)
    assert TypedFormat(column).encode(0, cell, row_key_text(cell.row_key), b'{"fare":1}')
    with pytest.raises(StorageUnavailable):
        TypedFormat(column).encode(0, cell, row_key_text(cell.row_key), b'{"fare":"1"}')
