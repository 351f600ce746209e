"""The OpenAPI document as generators need it: names, sizes of integers, and no tuple."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellfeed.store.datastore import Datastore
from cellfeed.store.http.server.app import WorkerApp
from tests.unit.store.http.test_http_rights import DOCUMENT, call


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory: Path = tmp_path_factory.mktemp("document")
    with Datastore.open_embedded(directory) as datastore:
        app = WorkerApp(datastore)
        status, body = call(app, *DOCUMENT, b"127.0.0.1")
        app.close()
    assert status == 200
    return json.loads(body)


def parts(document: Any) -> Iterator[dict[str, Any]]:
    if isinstance(document, dict):
        yield document
    for each in document.values() if isinstance(document, dict) else document:
        if isinstance(each, dict | list):
            yield from parts(each)


def test_every_call_has_a_short_name_of_its_own(document: Any) -> None:
    names = [
        operation["operationId"]
        for operations in document["paths"].values()
        for operation in operations.values()
    ]
    assert len(set(names)) == len(names)
    assert {"getCell", "putCell", "putCells", "follow", "wait", "health"} <= set(names)
    assert all(name.isalpha() and name[0].islower() and len(name) < 20 for name in names)


def test_integers_are_declared_with_64_bits(document: Any) -> None:
    integers = [part for part in parts(document) if part.get("type") == "integer"]
    assert integers
    assert all(part["format"] == "int64" for part in integers)


def test_no_tuple_is_left_and_their_lengths_are(document: Any) -> None:
    assert not [part for part in parts(document) if "prefixItems" in part]
    assert not [part for part in parts(document) if isinstance(part.get("items"), bool)]
    query = document["components"]["schemas"]["IndexQueryMessage"]["properties"]
    where, wait_for = query["where"]["items"], query["wait_for"]["items"]
    assert (where["minItems"], where["maxItems"], where["items"]) == (3, 3, {})
    assert (wait_for["minItems"], wait_for["items"]["type"]) == (2, "integer")


def test_every_reference_leads_somewhere(document: Any) -> None:
    found = [part["$ref"] for part in parts(document) if isinstance(part.get("$ref"), str)]
    assert found
    for reference in found:
        *_, schema = reference.split("/")
        assert schema in document["components"]["schemas"], reference
