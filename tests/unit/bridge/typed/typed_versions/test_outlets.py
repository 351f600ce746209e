"""Topics and exports whose values are typed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.bridge.events.envelope import decode_envelope
from cellfeed.bridge.events.formats import LeftOut
from cellfeed.bridge.events.record_headers import LeaderEpochs
from cellfeed.bridge.events.registry import envelope_schema_id
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.records import RecordEncoder
from cellfeed.bridge.export.schema_ids import typed_format
from cellfeed.bridge.gateway.topics.declared_topics import VirtualTopic
from cellfeed.bridge.gateway.topics.topics import Topics
from cellfeed.bridge.gateway.topics.typed_topics import TypedTopics
from cellfeed.bridge.typed.body_schema import body_schema
from cellfeed.bridge.typed.stored_columns import Settings
from cellfeed.bridge.typed.typed_column import TypedColumn
from cellfeed.bridge.typed.typed_format import TypedFormat
from cellfeed.bridge.typed.versions import register
from cellfeed.store.cells.sharding import row_key_text
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import (
    DataDamaged,
    InvalidRequest,
)
from tests.support.log_of_cells import log_cell
from tests.support.typed_versions import PARK, TIP, V1, StateInMemory, put, trip


def test_topics_that_are_typed(datastore: Datastore) -> None:
    register(datastore.state, "BASE", V1, Settings())
    put(datastore, {"fare": 1})
    json_format, avro = (
        RecordEncoder(Export("e", "b", format=name), "trips", 1)._format
        for name in ("json", "avro")
    )

    def names(formats: Any, *declared: VirtualTopic) -> set[str]:
        typed = TypedTopics(datastore.state)
        topics = Topics(
            "trips",
            datastore.engine.columns,
            formats,
            [(each, typed.format_of(each)) for each in declared],
        )
        typed.follow(topics)
        topics.refresh()
        found = [
            topics.named(name) for name in ("trips", "trips.BASE", "trips.BASE@latest", "some")
        ]
        return {
            topic.name
            for topic in found
            if topic is not None and isinstance(topic.event_format, TypedFormat)
        }

    assert names({"*": avro}) == {"trips.BASE", "trips.BASE@latest"}
    assert names({"*": avro, "trips.BASE": avro}) == set()
    assert names({"*": avro, "trips.BASE@latest": avro}) == {"trips.BASE"}
    assert names({"*": json_format}) == set()
    assert names({"*": json_format}, VirtualTopic("some", "BASE", format="typed")) == {"some"}
    with pytest.raises(InvalidRequest, match="column OTHER has no schema"):
        TypedTopics(datastore.state).format_of(VirtualTopic("some", "OTHER", format="typed"))
    for wrong in (
        VirtualTopic("some", format="typed"),
        VirtualTopic("some", "BASE", fields=["fare"], format="typed"),
    ):
        with pytest.raises(InvalidRequest, match="format typed is for whole bodies of one column"):
            wrong.check("trips")
    with pytest.raises(InvalidRequest, match="format typed is for whole bodies of one column"):
        Export("e", "b", format="typed").check()


def test_an_export_has_the_gateways_records_and_parks_rejected_cells(
    datastore: Datastore,
) -> None:
    register(datastore.state, "BASE", V1, PARK)
    export = Export("e", "b", column="BASE", format="typed").check()
    made = typed_format(export, datastore, "trips.BASE")
    assert made is not None
    encoder = RecordEncoder(export, "trips", envelope_schema_id(), made)
    cells = [
        log_cell(0, body={"fare": 1}),
        log_cell(1, body={"fare": 1.5}),
        log_cell(2, body={"fare": 2}),
    ]
    encoded = encoder.encode(0, cells, LeaderEpochs([], 0))
    assert [record.added_id for record in encoded.records] == [0, 2]
    assert [(cell.added_id, cell.error) for cell in encoded.too_large] == [
        (1, "unfit: fare is a number with a fraction, not an integer")
    ]
    wanted = TypedFormat(TypedColumn(datastore.state, "BASE")).encode_many(
        0, cells, [row_key_text(cell.row_key) for cell in cells], [b'{"fare":1}'] * 3
    )
    assert encoded.records[0].value == wanted[0]
    with pytest.raises(InvalidRequest, match="column OTHER has no schema"):
        typed_format(Export("e", "b", column="OTHER", format="typed"), datastore, "trips.OTHER")


def test_a_cell_exported_as_json_before_a_version_took_it_is_known_as_the_same(
    datastore: Datastore,
) -> None:
    register(datastore.state, "BASE", V1, Settings())
    export, cell, body = (
        Export("e", "b", column="BASE", format="typed"),
        log_cell(7, body={"fare": 1, "tip": 2}),
        b'{"fare":1,"tip":2}',
    )
    encoder = RecordEncoder(export, "trips", 1, typed_format(export, datastore, "t"))
    before = encoder.encode(0, [cell], LeaderEpochs([], 0)).records[0].value
    register(datastore.state, "BASE", trip(TIP), Settings())
    encoder = RecordEncoder(export, "trips", 1, typed_format(export, datastore, "t"))
    after = encoder.encode(0, [cell], LeaderEpochs([], 0)).records[0].value
    assert before is not None
    assert after is not None
    assert before != after
    assert encoder.is_as_json(0, cell, body, before)
    assert not encoder.is_as_json(0, cell, body.replace(b"2", b"3"), before)
    assert not encoder.is_as_json(0, cell, body, after)
    assert not encoder.is_as_json(0, cell, body, b"\x00\x00\x00\x00\x01" + before[5:])


@given(st.binary(max_size=60))
def test_a_typed_record_is_never_taken_for_an_envelope(text: bytes) -> None:
    """With any body: read as an envelope, its text has no or one byte."""
    state = StateInMemory()
    register(
        state,
        "BASE",
        body_schema('{"type":"record","name":"T","fields":[{"name":"t","type":"string"}]}'),
        Settings(),
    )
    column = TypedColumn(state, "BASE")
    cell = log_cell(1)
    for body in (
        {"t": text.decode(errors="replace")},
        {"t": "{}"},
        {"x": text.decode(errors="replace")},
    ):
        value = TypedFormat(column).encode(
            0, cell, row_key_text(cell.row_key), json.dumps(body).encode()
        )
        with pytest.raises(DataDamaged, match="a record is typed"):
            decode_envelope(value)


def test_a_rejected_body_has_no_value() -> None:
    assert LeftOut("why").reason == "why"
    assert not LeftOut("why")
