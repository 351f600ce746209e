"""Requests made from the worker's own OpenAPI document, odd ones included (schemathesis): no 5xx,
and every answer as the document says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from cellfeed.store.datastore import Datastore
from tests.support.worker_thread import worker_thread

pytestmark = pytest.mark.integration

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
ROUTES = [
    ("POST", "/v1/{datastore}/cell"),
    ("GET", "/v1/{datastore}/cell"),
    ("POST", "/v1/{datastore}/cells"),
    ("POST", "/v1/{datastore}/cells/get"),
    ("POST", "/v1/{datastore}/cells/latest"),
    ("GET", "/v1/{datastore}/latest"),
    ("GET", "/v1/{datastore}/row"),
    ("POST", "/v1/{datastore}/rows"),
    ("POST", "/v1/{datastore}/indexes/{index}/query"),
    ("POST", "/v1/{datastore}/wait"),
    ("GET", "/v1/{datastore}/shards"),
    ("POST", "/v1/{datastore}/shards/cells"),
    ("GET", "/v1/{datastore}/shards/{shard}/cells"),
    ("GET", "/health"),
    ("GET", "/health/live"),
    ("GET", "/metrics"),
]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with (
        Datastore.open_embedded(tmp_path_factory.mktemp("store")) as datastore,
        worker_thread(datastore) as url,
    ):
        yield url


@pytest.mark.parametrize(
    ("method", "path"), ROUTES, ids=[f"{method} {path}" for method, path in ROUTES]
)
def test_every_answer_matches_the_openapi_document(worker: str, method: str, path: str) -> None:
    document = schemathesis.openapi.from_url(f"{worker}/schema/openapi.json")
    asked = 0

    @settings(
        max_examples=40,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(case=document[path][method].as_strategy())
    def ask(case: schemathesis.Case[Any]) -> None:
        nonlocal asked
        if "datastore" in case.path_parameters and asked % 4:
            case.path_parameters["datastore"] = (
                "trips"  # a name made up is almost never the one that is served
            )
        asked += 1
        case.validate_response(case.call(), checks=CHECKS)

    ask()
    assert asked
