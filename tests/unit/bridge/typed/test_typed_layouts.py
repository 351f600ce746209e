"""Layouts of a view's records: milliseconds, and a typed body without the union. Each has ids of
its own, and no reader takes one for another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any, get_args

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.bridge.events.envelope import decode_envelope
from cellfeed.bridge.events.formats import CreatedAt
from cellfeed.bridge.events.named_formats import Layout, TypedBody, ViewFormatName, event_format
from cellfeed.bridge.events.record_headers import LeaderEpochs
from cellfeed.bridge.events.registry import SchemaRegistry, envelope_schema_id
from cellfeed.bridge.events.registry_errors import RegistryError
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.records import RecordEncoder
from cellfeed.bridge.export.schema_ids import schema_id_for, typed_format
from cellfeed.bridge.gateway.config import GatewayConfig
from cellfeed.bridge.gateway.served_topics import registry_of, topics_of
from cellfeed.bridge.gateway.topics.declared_topics import VirtualTopic
from cellfeed.bridge.gateway.topics.topics import Topic
from cellfeed.bridge.gateway.topics.typed_topics import TypedTopics
from cellfeed.bridge.typed.body_schema import BodySchema, body_schema
from cellfeed.bridge.typed.rejected_cells import rejected_cells
from cellfeed.bridge.typed.stored_columns import Settings, stored_columns
from cellfeed.bridge.typed.typed_column import TypedColumn
from cellfeed.bridge.typed.typed_format import TypedFormat
from cellfeed.bridge.typed.versions import id_in, register
from cellfeed.instance.config_file import load_config
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.sharding import row_key_text
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import DataDamaged, InvalidRequest
from tests.support.log_of_cells import log_cell

LAYOUTS = [Layout(*each) for each in product(get_args(CreatedAt), get_args(TypedBody))]
PARK = Settings("park")
MOMENT_US = 1_774_900_123_456_789
"""2026-03-30T19:48:43.456789Z"""
FITS, UNFIT = b'{"note":"{}"}', b'{"other":1}'


def schema(*more: dict[str, Any]) -> BodySchema:
    fields = [{"name": "note", "type": "string"}, *more]
    return body_schema(json.dumps({"type": "record", "name": "Note", "fields": fields}))


@pytest.fixture
def datastore(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path) as opened:
        register(opened.state, "BASE", schema(), PARK)
        yield opened


def cell_at(added_id: int, body: bytes = FITS) -> StoredCell:
    cell = log_cell(added_id, body=json.loads(body))
    return cell._replace(created_at_us=MOMENT_US)


def declared(format_name: ViewFormatName, layout: Layout) -> VirtualTopic:
    return VirtualTopic(
        f"{format_name}-{'-'.join(layout)}", "BASE", format=format_name, **layout._asdict()
    )


DECLARED = [
    *(declared("typed", layout) for layout in LAYOUTS),
    *(declared(name, Layout(unit)) for name in ("avro", "json") for unit in get_args(CreatedAt)),
]


class Gateway:
    """The registry of a gateway that declares the topics over a datastore."""

    def __init__(self, datastore: Datastore, *topics: VirtualTopic) -> None:
        config = GatewayConfig(topics=topics)
        self.typed = TypedTopics(datastore.state)
        self.topics = topics_of(datastore, config, self.typed)
        self.registry: SchemaRegistry = registry_of(datastore, config, self.topics, self.typed)

    def topic(self, declared_topic: VirtualTopic) -> Topic:
        found = self.topics.named(declared_topic.name)
        assert found is not None
        return found

    def value(self, declared_topic: VirtualTopic, cell: StoredCell, body: bytes = FITS) -> bytes:
        key = row_key_text(cell.row_key)
        return self.topic(declared_topic).event_format.encode(0, cell, key, body)


def read_by_id(registry: SchemaRegistry, value: bytes) -> dict[str, Any]:
    """As a deserialiser of Confluent's does."""
    written = json.loads(registry.by_id(int.from_bytes(value[1:5], "big")).text)
    stream = BytesIO(value[5:])
    read = fastavro.schemaless_reader(stream, fastavro.parse_schema(written), None)
    assert not stream.read(), "bytes are left"
    assert isinstance(read, dict)
    return read


def test_every_layout_is_decoded_by_its_own_schema_id_to_its_cell(datastore: Datastore) -> None:
    gateway, other = Gateway(datastore, *DECLARED), Gateway(datastore)
    ids: set[bytes] = set()
    for topic in DECLARED:
        if topic.format == "json":
            continue
        value = gateway.value(topic, cell_at(7))
        read = read_by_id(other.registry, value)
        exact = datetime.fromtimestamp(MOMENT_US // 1_000_000, UTC).replace(
            microsecond=456_789 if topic.created_at == "micros" else 456_000
        )
        assert (read["added_id"], read["shard"], read["created_at"]) == (7, 0, exact)
        assert read["body"] == (json.loads(FITS) if topic.format == "typed" else FITS.decode())
        subject = f"{topic.name}-value"
        [version] = gateway.registry.versions(subject)
        assert version.schema_id == int.from_bytes(value[1:5], "big")
        assert (subject, 1) in gateway.registry.uses(version.schema_id)
        assert other.registry.by_id(version.schema_id).text == version.text
        ids.add(value[1:5])
    assert len(ids) == len(LAYOUTS) + 2
    with pytest.raises(RegistryError, match="Schema 5 not found"):
        other.registry.by_id(5)


def test_the_body_alone_is_no_choice_in_its_schema(datastore: Datastore) -> None:
    """Spark shows a union of two types as members, and one of a single type as that type."""
    [version] = stored_columns(datastore.state)["BASE"].versions
    for layout in LAYOUTS:
        fields = {
            each["name"]: each["type"] for each in json.loads(version.cell_in(layout))["fields"]
        }
        assert len(fields["body"]) == (1 if layout.body == "record" else 2)
        assert fields["created_at"]["logicalType"] == f"timestamp-{layout.created_at}"


@given(st.text(max_size=60))
def test_no_layout_but_the_envelope_is_taken_for_an_envelope(
    datastore_of_module: Datastore, note: str
) -> None:
    gateway = Gateway(datastore_of_module, *DECLARED)
    for text in (note, "{}", '{"a":1}'):
        body = json.dumps({"note": text}, ensure_ascii=False, separators=(",", ":")).encode()
        cell = cell_at(7, body)
        for topic in DECLARED:
            value = gateway.value(topic, cell, body)
            if topic.format != "typed" and topic.created_at == "micros":
                assert decode_envelope(value).created_at_us == MOMENT_US
                continue
            with pytest.raises(DataDamaged):
                decode_envelope(value)


@pytest.fixture(scope="module")
def datastore_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path_factory.mktemp("store")) as opened:
        register(opened.state, "BASE", schema(), PARK)
        yield opened


def test_milliseconds_in_json_are_three_digits(datastore: Datastore) -> None:
    topic = declared("json", Layout("millis"))
    read = json.loads(Gateway(datastore, topic).value(topic, cell_at(7)))
    assert read["created_at"] == "2026-03-30T19:48:43.456Z"
    early = event_format("json", "trips", 1, "millis").encode(
        0, cell_at(7)._replace(created_at_us=1_999), b"k", FITS
    )
    assert json.loads(early)["created_at"] == "1970-01-01T00:00:00.001Z"


def test_another_layout_is_another_topic_with_blocks_of_its_own(
    datastore: Datastore,
) -> None:
    topics = [
        *(VirtualTopic("a", "BASE", format="typed", **layout._asdict()) for layout in LAYOUTS),
        *(VirtualTopic("a", "BASE", created_at=unit) for unit in get_args(CreatedAt)),
        *(
            VirtualTopic("a", "BASE", format="json", created_at=unit)
            for unit in get_args(CreatedAt)
        ),
    ]
    found = [Gateway(datastore, each).topic(each) for each in topics]
    assert len({each.topic_id for each in found}) == len(found)
    assert len({each.content for each in found}) == len(found)
    assert VirtualTopic("a", "BASE").definition() == (
        '[{"column":"BASE","filter":[],"fields":[]},"avro",false]'
    ), "a topic of an earlier version is the same one"


def test_an_unfit_body_without_a_place_is_parked_under_any_later_version(
    datastore: Datastore,
) -> None:
    alone = declared("typed", Layout("micros", "record"))
    both = declared("typed", Layout())
    gateway = Gateway(datastore, alone, both)
    register(datastore.state, "BASE", schema(), Settings("envelope"))
    gateway.typed.look()
    assert not gateway.value(alone, cell_at(3, UNFIT), UNFIT)
    assert [cell.added_id for cell in rejected_cells(datastore.state)] == [3]
    assert read_by_id(gateway.registry, gateway.value(both, cell_at(3, UNFIT), UNFIT))["body"] == (
        UNFIT.decode()
    )
    with pytest.raises(InvalidRequest, match=r"topic typed-micros-record: body: record has no"):
        Gateway(datastore, alone)
    column = TypedColumn(datastore.state, "BASE")
    assert column.settings.unfit == "envelope"
    cell = cell_at(3, UNFIT)
    assert not TypedFormat(column, layout=alone.layout).encode(
        0, cell, row_key_text(cell.row_key), UNFIT
    )


def test_a_new_version_has_an_id_in_every_layout(datastore: Datastore) -> None:
    gateway = Gateway(datastore, *DECLARED)
    register(
        datastore.state,
        "BASE",
        schema({"name": "n", "type": ["null", "long"], "default": None}),
        PARK,
    )
    gateway.typed.look()
    body = b'{"n":3,"note":"x"}'
    for layout in LAYOUTS:
        topic = declared("typed", layout)
        value = gateway.value(topic, cell_at(9, body), body)
        assert read_by_id(Gateway(datastore).registry, value)["body"] == {"n": 3, "note": "x"}
        assert [each.version for each in gateway.registry.versions(f"{topic.name}-value")] == [1, 2]


def test_a_schema_id_is_given_once_and_skips_ids_of_other_schemas(
    datastore: Datastore,
) -> None:
    [version] = stored_columns(datastore.state)["BASE"].versions
    layout, state = Layout("millis", "record"), datastore.state
    given = id_in(state, "BASE", version, layout)
    entries = state.list("typed-id/")
    assert id_in(state, "BASE", version, layout) == given
    assert state.list("typed-id/") == entries
    state.commit({f"typed-id/{given:010d}": b'{"column":"OTHER","number":1}'})
    assert id_in(state, "BASE", version, layout) == given + 1
    assert id_in(state, "BASE", version, Layout()) == version.schema_id


def test_an_export_has_the_gateways_records_in_every_layout(datastore: Datastore) -> None:
    gateway = Gateway(datastore, *DECLARED)
    prints = set()
    for topic in DECLARED:
        export = Export(
            "e", "b", topic="t", column="BASE", format=topic.format, **topic.layout._asdict()
        ).check()
        encoder = RecordEncoder(
            export, "trips", schema_id_for(export, "t"), typed_format(export, datastore, "t")
        )
        encoded = encoder.encode(0, [cell_at(7), cell_at(8, UNFIT)], LeaderEpochs([], 0))
        assert encoded.records[0].value == gateway.value(topic, cell_at(7))
        parks = topic.format == "typed"
        assert [cell.added_id for cell in encoded.too_large] == ([8] if parks else [])
        prints.add(export.fingerprint())
    assert len(prints) == len(DECLARED)
    assert Export("e", "b").fingerprint() == "adbaf7a8d82c1ad2", "that of an earlier version"
    register(datastore.state, "BASE", schema(), Settings("envelope"))
    with pytest.raises(InvalidRequest, match="export e: body: record has no place"):
        typed_format(Export("e", "b", column="BASE", format="typed", body="record"), datastore, "t")


def test_an_envelope_with_milliseconds_has_an_id_of_its_own() -> None:
    assert envelope_schema_id("millis") == 162_089_527, (
        "records with it lie in other people's topics"
    )
    assert envelope_schema_id("millis") != envelope_schema_id()


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (
            "{name: a, format: json, body: record}",
            "topic a: body record is for format typed, not json",
        ),
        (
            "{name: a, column: BASE, format: cloudevents, created_at: millis}",
            "topic a: created_at millis",
        ),
        ("{name: a, created_at: seconds}", r"seconds.*\$\.datastore\.topics\[0\]\.created_at"),
        (
            "{name: a, column: BASE, format: typed, body: record}",
            "config: topic a: body: record has no place .* column BASE says unfit: envelope;"
            " write unfit: park",
        ),
    ],
)
def test_a_configuration_that_names_an_unknown_schema_is_refused(
    tmp_path: Path, said: str, error: str
) -> None:
    path = tmp_path / "cellfeed.yaml"
    path.write_text(
        f"datastore: {{topics: [{said}], schemas: [{{column: BASE, schema: taxi_trip}}]}}"
    )
    with pytest.raises(InvalidRequest, match=error):
        load_config(path)
    path.write_text(
        "datastore: {topics: [{name: a, column: BASE, format: typed, body: record}],"
        " schemas: [{column: BASE, schema: taxi_trip, unfit: park}]}"
    )
    load_config(path)
