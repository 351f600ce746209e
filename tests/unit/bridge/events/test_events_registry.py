"""The registry's answers: stable ids, Confluent's error codes, and nothing but an error for a text
that is no schema."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cellfeed.schemas
from cellfeed.bridge.events.registry import ENVELOPE_VERSIONS, SchemaRegistry, envelope_schema_id
from cellfeed.bridge.events.registry_errors import RegistryError
from cellfeed.bridge.events.registry_http import CONTENT_TYPE, REQUEST_BYTES_MAX, registry_app
from cellfeed.bridge.events.schema_id import schema_id_of
from cellfeed.store.errors import CellfeedError, DataDamaged, StorageUnavailable
from tests.support.awaiting import awaited

ENVELOPE_ID = 812_394_139
COLUMNS = ["BASE", "a/b", "JSON"]
ENVELOPE = cellfeed.schemas.avro_text("cell_envelope")
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def call(
    method: str,
    path: str,
    body: bytes = b"",
    headers: list[tuple[bytes, bytes]] | None = None,
    query: str = "",
) -> tuple[int, Any]:
    """One request about a datastore with an Avro topic per column but JSON."""
    registry = SchemaRegistry(
        "trips", lambda: COLUMNS, serves_avro=lambda topic: topic != "trips.JSON"
    )
    return answer_of(registry, method, path, body, headers, query)


def answer_of(
    registry: SchemaRegistry,
    method: str,
    path: str,
    body: bytes = b"",
    headers: list[tuple[bytes, bytes]] | None = None,
    query: str = "",
) -> tuple[int, Any]:
    """One request to the app in process: the status and the decoded answer."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode("latin-1"),
        "query_string": query.encode(),
        "headers": headers or [],
    }
    awaited(registry_app(registry)(scope, receive, send))
    assert dict(sent[0]["headers"])[b"content-type"] == CONTENT_TYPE
    assert dict(sent[0]["headers"])[b"content-length"] == str(len(sent[1]["body"])).encode()
    return sent[0]["status"], json.loads(sent[1]["body"]) if method != "HEAD" else None


def posted(schema: object, **more: object) -> bytes:
    return json.dumps({"schema": schema, **more}).encode()


def test_the_ids_of_released_schemas_never_change() -> None:
    assert {name: schema_id_of(cellfeed.schemas.load_avro(name)) for name in ENVELOPE_VERSIONS} == {
        "cell_envelope": ENVELOPE_ID
    }
    assert envelope_schema_id() == ENVELOPE_ID


def test_a_better_explanation_keeps_the_id_and_another_meaning_changes_it() -> None:
    schema = cellfeed.schemas.load_avro("cell_envelope")
    schema["doc"] = schema["fields"][0]["doc"] = "said better"
    assert schema_id_of(schema) == ENVELOPE_ID
    schema["fields"][0]["type"] = "string"  # without its logical type
    assert schema_id_of(schema) != ENVELOPE_ID
    documented_default = {"type": "map", "values": "string", "default": {"doc": "a"}}
    assert schema_id_of(documented_default) != schema_id_of(
        {**documented_default, "default": {"doc": "b"}}
    )


def test_every_field_of_the_envelope_is_documented() -> None:
    schema = cellfeed.schemas.load_avro("cell_envelope")
    assert all(len(field["doc"]) > 10 for field in [schema, *schema["fields"]])


def test_a_topic_that_appears_later_is_a_subject_at_once() -> None:
    columns: list[str] = []
    registry = SchemaRegistry("trips", lambda: columns)
    with pytest.raises(RegistryError, match=r"trips\.NEW-value"):
        registry.version("trips.NEW-value", "latest")
    columns.append("NEW")
    assert registry.version("trips.NEW-value", "latest").schema_id == ENVELOPE_ID


def test_declared_topics_are_subjects_and_unlisted_ones_are_found_by_name() -> None:
    registry = SchemaRegistry(
        "trips",
        lambda: ["JSON"],
        lambda topic: topic != "trips.JSON",
        ["cards"],
        unlisted=lambda topic: topic == "trips@latest",
    )
    assert registry.subjects() == ["cards-value", "trips-value"]
    for subject in ("cards-value", "trips@latest-value"):
        assert registry.version(subject, "latest").schema_id == envelope_schema_id()
        assert (
            answer_of(registry, "GET", f"/subjects/{quote(subject)}/versions/latest")[1]["id"]
            == ENVELOPE_ID
        )
    for subject in ("trips.JSON-value", "trips@latest", "cards", "cards@latest-value"):
        with pytest.raises(RegistryError, match="not found"):
            registry.check_subject(subject)


def test_reads_answer_as_confluents_registry_does() -> None:
    subject = "trips-value"
    version = {"subject": subject, "version": 1, "id": ENVELOPE_ID}
    assert call("GET", "/") == (200, {})
    assert call("GET", "/schemas/types") == (200, ["AVRO"])
    status, answer = call("GET", f"/schemas/ids/{ENVELOPE_ID}")
    assert (status, list(answer)) == (200, ["schema"])
    assert json.loads(answer["schema"]) == json.loads(ENVELOPE)
    assert call("GET", f"/schemas/ids/{ENVELOPE_ID}/schema") == (200, json.loads(ENVELOPE))
    all_subjects = ["trips-value", "trips.BASE-value", "trips.a/b-value"]
    assert call("GET", f"/schemas/ids/{ENVELOPE_ID}/subjects") == (200, all_subjects)
    assert call("GET", f"/schemas/ids/{ENVELOPE_ID}/versions") == (
        200,
        [{"subject": name, "version": 1} for name in all_subjects],
    )
    assert call("GET", "/subjects/") == (200, all_subjects)
    assert call("GET", "/subjects", query="subjectPrefix=trips.B") == (200, ["trips.BASE-value"])
    assert call("GET", f"/subjects/{subject}/versions") == (200, [1])
    for spelled in ("1", "latest", "-1"):
        status, found = call("GET", f"/subjects/{subject}/versions/{spelled}")
        assert (status, found) == (200, {**version, "schema": answer["schema"]})
    assert call("GET", f"/subjects/{subject}/versions/1/schema") == (200, json.loads(ENVELOPE))
    assert call("GET", f"/subjects/{quote('trips.a/b-value', safe='')}/versions") == (200, [1])
    assert (
        call("GET", "/config")
        == call("GET", f"/config/{subject}")
        == (200, {"compatibilityLevel": "FULL_TRANSITIVE"})
    )
    assert call("GET", "/mode") == call("GET", f"/mode/{subject}") == (200, {"mode": "READONLY"})
    assert call("HEAD", "/subjects") == (200, None)


def test_the_envelope_is_looked_up_and_registered_under_the_id_it_has() -> None:
    reformatted = json.dumps(json.loads(ENVELOPE), indent=7)
    for path in ("/subjects/trips-value", "/subjects/trips-value/versions"):
        for body in (
            posted(ENVELOPE),
            posted(reformatted, schemaType="AVRO"),
            posted(ENVELOPE, schemaType=None, references=[]),
        ):
            status, answer = call("POST", path, body)
            assert (status, answer["id"], answer["version"], answer["subject"]) == (
                200,
                ENVELOPE_ID,
                1,
                "trips-value",
            )


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "error_code"),
    [
        ("GET", "/schemas/ids/1", b"", 404, 40403),
        ("GET", "/schemas/ids/99999999999999", b"", 404, 404),
        ("GET", "/schemas/ids/x", b"", 404, 404),
        ("GET", "/subjects/other-value/versions", b"", 404, 40401),
        ("GET", "/subjects/trips.JSON-value/versions", b"", 404, 40401),
        ("GET", "/subjects/trips/versions", b"", 404, 40401),
        ("GET", "/subjects/trips-key/versions/latest", b"", 404, 40401),
        ("GET", "/subjects/trips-value/versions/2", b"", 404, 40402),
        ("GET", "/subjects/trips-value/versions/0", b"", 422, 42202),
        ("GET", "/subjects/trips-value/versions/newest", b"", 422, 42202),
        ("GET", "/subjects/trips-value/versions/%C2%B2", b"", 422, 42202),
        ("GET", "/config/other-value", b"", 404, 40401),
        ("GET", "/nothing", b"", 404, 404),
        ("GET", "/subjects/trips-value", b"", 405, 405),
        ("POST", "/subjects/other-value", posted('"string"'), 404, 40401),
        ("POST", "/subjects/trips-value", posted('"string"'), 404, 40403),
        ("POST", "/subjects/trips-value", posted('{"type":"record"}'), 422, 42201),
        ("POST", "/subjects/trips-value", posted("not json"), 422, 42201),
        ("POST", "/subjects/trips-value", posted(5), 422, 42201),
        ("POST", "/subjects/trips-value", posted('"string"', schemaType="PROTOBUF"), 422, 42201),
        ("POST", "/subjects/trips-value", b"[]", 400, 400),
        ("POST", "/subjects/trips-value", b"\xff", 400, 400),
        ("POST", "/subjects/trips-value", b" " * (REQUEST_BYTES_MAX + 1), 413, 413),
        ("POST", "/subjects/trips-value/versions", posted('"string"'), 422, 42205),
        ("PUT", "/config", b'{"compatibility":"NONE"}', 422, 42205),
        ("PUT", "/mode/trips-value", b'{"mode":"READWRITE"}', 422, 42205),
        ("DELETE", "/subjects/trips-value", b"", 422, 42205),
        ("DELETE", "/subjects/trips-value/versions/1", b"", 422, 42205),
        ("BREW", "/subjects", b"", 405, 405),
    ],
)
def test_refusals_have_confluents_error_codes(
    method: str, path: str, body: bytes, status: int, error_code: int
) -> None:
    found, answer = call(method, path, body)
    assert (found, answer["error_code"]) == (status, error_code)
    assert sorted(answer) == ["error_code", "message"]
    assert answer["message"]


@pytest.mark.parametrize(
    ("error", "status"),
    [(StorageUnavailable("the store is closed"), 503), (DataDamaged("a row does not decode"), 500)],
)
def test_a_registry_whose_store_is_unavailable_answers_with_that_error(
    error: CellfeedError, status: int
) -> None:
    def columns() -> list[str]:
        raise error

    found, answer = answer_of(SchemaRegistry("trips", columns), "GET", "/subjects")
    assert (found, answer) == (status, {"error_code": 50001, "message": str(error)})
    assert (
        answer_of(SchemaRegistry("trips", columns), "GET", f"/schemas/ids/{ENVELOPE_ID}")[0] == 200
    )  # needs no store


def test_a_foreign_host_name_is_refused() -> None:
    assert call("GET", "/subjects", headers=[(b"host", b"evil.example:8081")])[0] == 400
    assert call("GET", "/subjects", headers=[(b"host", b"127.0.0.1:8081")])[0] == 200


@given(JSON_VALUES, JSON_VALUES)
def test_any_json_for_a_schema_is_answered_and_never_taken_for_the_envelope(
    schema: object, schema_type: object
) -> None:
    for text in (
        schema,
        json.dumps(schema),
        json.dumps({"type": "record", "name": "x", "fields": schema}),
    ):
        status, answer = call("POST", "/subjects/trips-value", posted(text, schemaType=schema_type))
        assert (status, answer["error_code"]) in ((404, 40403), (422, 42201))


def test_a_schema_nested_without_end_is_invalid() -> None:
    for text in (
        "[" * 100_000,
        '{"type":' * 5_000 + '"string"' + "}" * 5_000,
        '{"type":"array","items":' * 300 + '"string"' + "}" * 300,
    ):
        assert call("POST", "/subjects/trips-value", posted(text))[0] in (404, 422)


@given(st.text(), st.sampled_from(["GET", "POST", "HEAD", "DELETE"]), st.binary(max_size=50))
def test_any_path_is_answered(path: str, method: str, body: bytes) -> None:
    for prefix in (
        "/",
        "/subjects/",
        "/schemas/ids/",
        "/subjects/trips-value/versions/",
        "/config/",
    ):
        assert call(method, prefix + quote(path, safe="/%"), body)[0] in (200, 400, 404, 405, 422)


def test_a_loaded_schema_is_the_callers_own() -> None:
    cellfeed.schemas.load_avro("cell_envelope")["fields"].clear()
    assert len(cellfeed.schemas.load_avro("cell_envelope")["fields"]) == 7
    with pytest.raises(FileNotFoundError):
        cellfeed.schemas.load_avro("no_such_schema")
