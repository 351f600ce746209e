"""Versions in the datastore, and what records are by them: a function of what is registered alone,
in every gateway and exporter."""

from __future__ import annotations

import builtins
import io
import json
from collections.abc import Iterator, Mapping
from itertools import permutations
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.bridge.events.envelope import decode_envelope
from cellfeed.bridge.events.formats import LeftOut
from cellfeed.bridge.events.record_batch import decode_record_batches
from cellfeed.bridge.events.record_headers import LeaderEpochs
from cellfeed.bridge.events.registry import envelope_schema_id
from cellfeed.bridge.events.views import View
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.records import RecordEncoder
from cellfeed.bridge.export.schema_ids import typed_format
from cellfeed.bridge.gateway.log.encode import encode_range
from cellfeed.bridge.gateway.topics.declared_topics import VirtualTopic
from cellfeed.bridge.gateway.topics.topics import Topics, make_topic
from cellfeed.bridge.gateway.topics.typed_topics import TypedTopics
from cellfeed.bridge.typed.body_schema import BodySchema, body_schema
from cellfeed.bridge.typed.declaration import ColumnSchema, check_schemas
from cellfeed.bridge.typed.rejected_cells import (
    forget_row,
    left_out,
    note_rejected,
    rejected_cells,
    try_again,
)
from cellfeed.bridge.typed.typed_column import TypedColumn, TypedColumns
from cellfeed.bridge.typed.typed_format import TypedFormat
from cellfeed.bridge.typed.versions import (
    Settings,
    register,
    register_declared,
    stored_columns,
)
from cellfeed.store.cells.sharding import row_key_text
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.engine import StateTable
from cellfeed.store.engines.contract.values import StateEntry
from cellfeed.store.errors import (
    DataDamaged,
    IncompatibleSchema,
    InvalidRequest,
    StorageUnavailable,
)
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from tests.support.log_of_cells import LogOfCells, log_cell


def trip(*more: dict[str, Any]) -> BodySchema:
    """A record with a fare, and further fields."""
    fields = [{"name": "fare", "type": "long"}, *more]
    return body_schema(
        json.dumps({"type": "record", "name": "Trip", "namespace": "a", "fields": fields})
    )


NOTE = {"name": "note", "type": ["null", "string"], "default": None}
TIP = {"name": "tip", "type": "long", "default": 0}
V1, V2, V3 = VERSIONS = trip(), trip(NOTE), trip(NOTE, TIP)
PARK = Settings("park")


@pytest.fixture
def datastore(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _no_failpoints() -> Iterator[None]:
    yield
    clear_failpoints()


class StateInMemory:
    """A state table as the engine contract has it."""

    def __init__(self) -> None:
        self._entries: dict[str, StateEntry] = {}
        self._revision = 0

    def get(self, key: str) -> StateEntry | None:
        return self._entries.get(key)

    def list(self, prefix: str) -> builtins.list[StateEntry]:
        return [self._entries[key] for key in sorted(self._entries) if key.startswith(prefix)]

    def commit(
        self, write: Mapping[str, bytes | None], expect: Mapping[str, int | None] | None = None
    ) -> int | None:
        versions = {key: entry.version for key, entry in self._entries.items()}
        if any(versions.get(key) != version for key, version in (expect or {}).items()):
            return None
        self._revision += 1
        for key, value in write.items():
            self._entries.pop(key, None)
            if value is not None:
                self._entries[key] = StateEntry(key, value, self._revision)
        return self._revision

    def now_us(self) -> int:
        return 0


def numbers(datastore: Datastore, column: str = "BASE") -> list[tuple[int, int]]:
    return [
        (version.number, version.schema_id)
        for version in stored_columns(datastore.state)[column].versions
    ]


def read_value(state: StateTable, value: bytes) -> Any:
    """As a client with the registry reads it."""
    registered = TypedTopics(state).by_id(int.from_bytes(value[1:5], "big"))
    assert registered is not None
    return fastavro.schemaless_reader(
        io.BytesIO(value[5:]),
        fastavro.parse_schema(json.loads(registered.text), _write_hint=False),
        None,
    )


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


def test_an_id_that_has_a_meaning_is_not_given_another_one(datastore: Datastore) -> None:
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


def test_two_gateways_that_register_at_one_moment_come_one_behind_the_other(
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


def test_a_declared_file_is_read_from_the_run_directory_and_what_is_wrong_is_told_with_its_name(
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


bodies = st.fixed_dictionaries(
    {"fare": st.integers(0, 5)},
    optional={"note": st.just("x"), "tip": st.just(1), "odd": st.just(1.5)},
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
    them: the same blocks, once there are ``registered``. And what was typed before stays as it was,
    byte for byte, when there are more."""
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


def test_while_the_datastore_cannot_be_asked_nothing_is_called_unfit(datastore: Datastore) -> None:
    register(datastore.state, "BASE", V1, PARK)

    class Away:
        def __getattr__(self, name: str) -> Any:
            raise StorageUnavailable(f"{name}: away")

    column = TypedColumn(Away(), "BASE", stored_columns(datastore.state)["BASE"])
    cell = log_cell(0)
    assert TypedFormat(column).encode(0, cell, row_key_text(cell.row_key), b'{"fare":1}')
    with pytest.raises(StorageUnavailable):
        TypedFormat(column).encode(0, cell, row_key_text(cell.row_key), b'{"fare":"1"}')


def put(datastore: Datastore, *bodies: dict[str, Any]) -> list[tuple[int, int]]:
    """Shard and added_id of each."""
    results = datastore.put_cells(
        [(UUID(int=1), "BASE", number, body) for number, body in enumerate(bodies)]
    )
    return [
        (result.shard, result.added_id)
        for result in results
        if result.or_raise() and result.shard is not None and result.added_id is not None
    ]


def test_what_is_parked_is_listed_before_it_is_left_out_and_off_the_list_once_a_version_takes_it(
    datastore: Datastore,
) -> None:
    register(datastore.state, "BASE", V1, PARK)
    places = put(datastore, {"fare": 1}, {"fare": 2, "tip": 3}, {"fare": "4"})
    shard = places[0][0]
    topics = Topics(
        "trips",
        datastore.engine.columns,
        {"*": RecordEncoder(Export("e", "b"), "trips", 1)._format},
    )
    typed = TypedTopics(datastore.state)
    typed.follow(topics)
    topics.refresh()
    topic = topics.named("trips.BASE")
    assert topic is not None
    for _ in range(2):  # again, as another gateway does
        block = encode_range(datastore.engine, topic, shard, 0, 3, 0)
        assert [
            record.offset for batch in block for record in decode_record_batches(batch.data)
        ] == [0]
        listed = list(rejected_cells(datastore.state))
        assert [(cell.added_id, cell.ref_key, cell.reason) for cell in listed] == [
            (1, 1, "tip is a member that the schema does not have"),
            (2, 2, "fare is text, not an integer"),
        ]
    register(datastore.state, "BASE", trip(TIP), PARK)
    done = try_again(datastore.engine, TypedColumns(datastore.state))
    assert (
        [cell.added_id for cell in done.fits],
        [cell.added_id for cell in done.still_rejected],
        done.trimmed,
    ) == ([1], [2], [])
    assert [cell.added_id for cell in rejected_cells(datastore.state, "BASE")] == [2]
    typed.look()
    renewed = topics.named("trips.BASE")
    assert renewed is not None
    assert renewed.content != topic.content, "what is kept of it from before is not shown any more"
    block = encode_range(datastore.engine, renewed, shard, 0, 3, 0)
    assert [record.offset for batch in block for record in decode_record_batches(batch.data)] == [
        0,
        1,
    ]
    assert datastore.engine.trim(shard, 3) == 3
    assert len(try_again(datastore.engine, TypedColumns(datastore.state)).trimmed) == 1
    assert not list(rejected_cells(datastore.state))


def test_many_parked_cells_are_few_entries(datastore: Datastore) -> None:
    cells = [log_cell(number) for number in range(2_500)]
    note_rejected(datastore.state, "BASE", 3, [(cell, "because " * 100) for cell in cells])
    note_rejected(datastore.state, "BASE", 3, [(cell, "because") for cell in cells[990:1010]])
    assert len(datastore.state.list("unfit/")) == 3
    assert [cell.added_id for cell in rejected_cells(datastore.state)] == list(range(2_500))


def test_what_is_left_out_is_counted_by_a_bounded_read(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = datastore.state
    assert left_out(state, "BASE", 16) is None
    note_rejected(state, "BASE", 3, [(log_cell(7), "fare is text")])
    note_rejected(state, "OTHER", 1, [(log_cell(0), "of another column")])
    note_rejected(state, "BASE", 9, [(log_cell(number), "because") for number in range(1_500)])
    found = left_out(state, "BASE", 16)
    assert found is not None
    assert (found.column, found.cells, found.or_more) == ("BASE", 1_501, False)
    assert (found.first.shard, found.first.added_id, found.first.reason) == (3, 7, "fare is text")
    monkeypatch.setattr("cellfeed.bridge.typed.rejected_cells.COUNTED_ENTRIES", 1)
    bounded = left_out(state, "BASE", 16)
    assert bounded is not None
    assert (bounded.cells, bounded.or_more) == (1, True)
    note_rejected(state, "LAST", 15, [(log_cell(0), "because")])
    last = left_out(state, "LAST", 16)
    assert last is not None
    assert not last.or_more, "no shard is left to be read"


def test_the_reasons_of_an_erased_row_go_with_its_bodies(datastore: Datastore) -> None:
    erased, other = log_cell(0), log_cell(1)._replace(row_key=UUID(int=77).bytes)
    note_rejected(
        datastore.state,
        "BASE",
        3,
        [(erased, "fare is 12.5, not an integer"), (other, "fare is text, not an integer")],
    )
    forget_row(datastore.state, UUID(bytes=erased.row_key))
    assert [cell.reason for cell in rejected_cells(datastore.state)] == [
        "fare is text, not an integer"
    ]
    forget_row(datastore.state, UUID(int=77))
    assert datastore.state.list("unfit/") == []


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


def test_an_export_has_the_gateways_records_and_parks_what_is_left_out(
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


def test_what_was_exported_as_json_before_a_version_took_it_is_known_as_the_same_cell(
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


def test_what_is_left_out_is_no_value() -> None:
    assert LeftOut("why").reason == "why"
    assert not LeftOut("why")
