"""An export of typed bodies into a real cluster, with a registry of its own, while a new version of
the schema comes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from msgspec import structs

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.export.export_terms import agree_terms
from cellfeed.bridge.export.verify import verify_export
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.typed.body_schema import BodySchema, body_schema
from cellfeed.bridge.typed.stored_columns import Settings
from cellfeed.bridge.typed.versions import register
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import ProtectData
from tests.support.export_steps import (
    Exporter,
    export_to,
    exporters,
    put,
    read_topic,
    wait_caught_up,
)
from tests.support.local_kafka import Kafka
from tests.support.schema_registry import Asked, answering

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("kafka")]

SHARDS = 4


def schema(*more: str) -> BodySchema:
    """Of the cells that :func:`tests.support.export_steps.put` puts; with ``text`` of those
    that have one."""
    fields: list[dict[str, Any]] = [{"name": "n", "type": "long"}, {"name": "kind", "type": "int"}]
    fields += [{"name": name, "type": ["null", "string"], "default": None} for name in more]
    return body_schema(json.dumps({"type": "record", "name": "Numbered", "fields": fields}))


@contextmanager
def registry() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Gives each schema an id of its own, counted from 1, as a Schema Registry does; the schemas
    that were registered: subject and schema, by id."""
    given: list[tuple[str, str]] = []

    def give(request: Asked) -> tuple[int, object]:
        wanted = request.path, request.body["schema"]
        if wanted not in given:
            given.append(wanted)
        return 200, {"id": given.index(wanted) + 1}

    with answering(give) as url:
        yield url, given


@pytest.mark.parametrize("unfit", ["envelope", "park"])
def test_a_typed_export_continues_over_a_new_version_and_earlier_rejected_cells_stay_parked(
    kafka: Kafka, tmp_path: Path, unfit: str
) -> None:
    with (
        Datastore.open_embedded(tmp_path / "store", shards=SHARDS) as store,
        registry() as (url, given),
    ):
        register(store.state, "BASE", schema(), Settings(unfit))  # type: ignore[arg-type]
        put(store, 60)
        put(store, 3, first=1_000, size=5)  # fit the second version only
        put(store, 3, first=5_000, column="NOTES")
        export = export_to(kafka, column="BASE", format="typed", registry=url)
        coordinator = StoreCoordinator(store.state)
        exporter = Exporter(tmp_path / "store", "a", SHARDS, [export])
        with exporters(exporter):
            wait_caught_up(store, coordinator, export)
            register(store.state, "BASE", schema("text"), Settings(unfit))  # type: ignore[arg-type]
            put(store, 2, first=2_000, size=5)
            wait_caught_up(store, coordinator, export)
            exporter.drain()
        assert [path for path, _ in given] == [f"/subjects/{export.topic}-value/versions"] * 2
        assert given[0][1] == schema().cell_text
        read = []
        for records in read_topic(export, SHARDS).values():
            for record in records:
                assert record.value is not None
                number = int.from_bytes(record.value[1:5], "big")
                parsed = fastavro.parse_schema(json.loads(given[number - 1][1]), _write_hint=False)
                body = fastavro.schemaless_reader(BytesIO(record.value[5:]), parsed, None)["body"]  # type: ignore[call-overload, index]
                read.append((number, "text" if isinstance(body, str) else "typed"))
        parked = ParkedCells(store.state).all(export.group)
        as_json = 3 if unfit == "envelope" else 0
        assert sorted(read) == sorted(
            [(1, "typed")] * 60 + [(1, "text")] * as_json + [(2, "typed")] * 2
        )
        assert [cell.error for cell in parked] == [
            "unfit: text is a member that the schema does not have"
        ] * (3 - as_json)
        assert all(verdict.equal for verdict in verify_export(export, store)), (
            "also of what was exported as JSON before"
        )


@pytest.mark.parametrize("format_name", ["avro", "json", "typed"])
def test_an_export_in_another_layout_is_verified_and_may_not_change_the_layout(
    kafka: Kafka, tmp_path: Path, format_name: str
) -> None:
    layout = {"created_at": "millis", **({"body": "record"} if format_name == "typed" else {})}
    with Datastore.open_embedded(tmp_path / "store", shards=SHARDS) as store:
        register(store.state, "BASE", schema(), Settings("park"))
        put(store, 40)
        put(store, 2, first=1_000, size=5)
        export = export_to(kafka, column="BASE", format=format_name, **layout)
        coordinator = StoreCoordinator(store.state)
        exporter = Exporter(tmp_path / "store", "a", SHARDS, [export])
        with exporters(exporter):
            wait_caught_up(store, coordinator, export)
            exporter.drain()
        verdicts = list(verify_export(export, store))
        assert all(verdict.equal for verdict in verdicts)
        left_out = 2 if format_name == "typed" else 0
        assert sum(verdict.cells for verdict in verdicts) == 42 - left_out
        assert len(ParkedCells(store.state).all(export.group)) == left_out
        usual = structs.replace(export, created_at="micros")
        assert not all(verdict.equal for verdict in verify_export(usual, store))
        with pytest.raises(ProtectData, match="begun with another form of its records"):
            agree_terms(store, usual, "", "")
