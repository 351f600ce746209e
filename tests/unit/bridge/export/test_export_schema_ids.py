"""The schema's registration, against the answers of Confluent's Schema Registry as its
documentation records them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import cellfeed.schemas
from cellfeed.bridge.events.registry import envelope_schema_id
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.schema_ids import register, schema_id_for
from cellfeed.store.errors import ProtectData, Unavailable
from tests.support.free_ports import free_port
from tests.support.schema_registry import Asked, answering

ENVELOPE = cellfeed.schemas.avro_text("cell_envelope")


@contextmanager
def registry(status: int, answer: object) -> Iterator[tuple[str, list[Asked]]]:
    """One that gives the same answer always; its address, and the requests that it got."""
    asked: list[Asked] = []

    def note(request: Asked) -> tuple[int, object]:
        asked.append(request)
        return status, answer

    with answering(note) as url:
        yield url, asked


def test_the_schema_is_registered_under_the_topics_value_and_its_id_taken() -> None:
    with registry(200, {"id": 42, "version": 1}) as (url, asked):
        export = Export(
            "trips", "broker:9092", registry=url.replace("http://", "http://user:secret@")
        )
        assert schema_id_for(export, "trips.BASE") == 42
    [(path, headers, body)] = asked
    assert path == "/subjects/trips.BASE-value/versions"
    assert headers["Content-Type"] == "application/vnd.schemaregistry.v1+json"
    assert headers["authorization"].startswith("Basic ")
    assert isinstance(body, dict)
    assert json.loads(body["schema"])["type"] == "record"
    assert body["schemaType"] == "AVRO"


def test_without_a_registry_the_id_is_that_of_the_gateways_own() -> None:
    assert schema_id_for(Export("trips", "broker:9092"), "trips") == envelope_schema_id()


@pytest.mark.parametrize(
    ("status", "answer", "error", "says"),
    [
        (
            409,
            {"error_code": 409, "message": "Schema being registered is incompatible"},
            ProtectData,
            "incompatible",
        ),
        (422, {"error_code": 42201, "message": "Invalid schema"}, ProtectData, "Invalid schema"),
        (401, {"message": "Unauthorized"}, ProtectData, "401"),
        (
            500,
            {"error_code": 50001, "message": "Error in the backend datastore"},
            Unavailable,
            "500",
        ),
        (429, {}, Unavailable, "429"),
        (200, {"hello": "world"}, ProtectData, "no Schema Registry"),
    ],
)
def test_a_refused_registration_is_an_error_and_a_retriable_one_is_tried_again(
    status: int, answer: object, error: type[Exception], says: str
) -> None:
    with registry(status, answer) as (url, _), pytest.raises(error, match=says):
        register(url, "trips-value", ENVELOPE)


def test_a_registry_that_does_not_answer_is_awaited_and_no_error_has_its_password() -> None:
    with pytest.raises(Unavailable) as told:
        register(f"http://user:secret@127.0.0.1:{free_port()}", "trips-value", ENVELOPE)
    assert "secret" not in str(told.value)
