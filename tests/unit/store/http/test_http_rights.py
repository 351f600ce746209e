"""Every HTTP route of a worker is on this list, and answers nobody who names another host: the one
rule that guards HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from cellfeed.store.datastore import Datastore
from cellfeed.store.http.server.app import WorkerApp

ROUTES: Final = {
    ("get", "/livez"),
    ("get", "/readyz"),
    ("get", "/health"),
    ("get", "/health/live"),
    ("get", "/health/ready"),
    ("get", "/metrics"),
    ("post", "/v1/{datastore}/cell"),
    ("get", "/v1/{datastore}/cell"),
    ("get", "/v1/{datastore}/latest"),
    ("get", "/v1/{datastore}/row"),
    ("post", "/v1/{datastore}/cells"),
    ("post", "/v1/{datastore}/cells/get"),
    ("post", "/v1/{datastore}/cells/latest"),
    ("post", "/v1/{datastore}/rows"),
    ("delete", "/v1/{datastore}/rows/{row_key}"),
    ("get", "/v1/{datastore}/shards"),
    ("get", "/v1/{datastore}/shards/{shard}/cells"),
    ("post", "/v1/{datastore}/shards/cells"),
    ("post", "/v1/{datastore}/indexes/{index}/query"),
    ("post", "/v1/{datastore}/wait"),
    ("post", "/v1/{datastore}/follow"),
}
DOCUMENT: Final = ("get", "/schema/openapi.json")


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerApp]:
    with Datastore.open_embedded(tmp_path_factory.mktemp("routes")) as datastore:
        app = WorkerApp(datastore)
        yield app
        app.close()


def call(app: WorkerApp, method: str, path: str, host: bytes) -> tuple[int, bytes]:
    """The status and body of an answer."""
    sent: list[Any] = []
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method.upper(),
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", host), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 1),
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def test_every_route_is_on_the_list(app: WorkerApp) -> None:
    status, body = call(app, *DOCUMENT, b"127.0.0.1")
    assert status == 200
    assert {
        (method, path)
        for path, operations in json.loads(body)["paths"].items()
        for method in operations
    } == ROUTES


@pytest.mark.parametrize(
    ("method", "path"), sorted({*ROUTES, DOCUMENT, ("get", "/schema"), ("get", "/nothing")})
)
def test_a_foreign_host_is_refused_on_every_route(app: WorkerApp, method: str, path: str) -> None:
    path = (
        path.format(
            datastore="trips",
            shard=0,
            index="byZone",
            row_key="00000000-0000-4000-8000-000000000000",
        )
        if "{" in path
        else path
    )
    status, body = call(app, method, path, b"feed.example:8080")
    assert (status, json.loads(body)["error"]) == (400, "invalid_request")
    assert b"not a loopback address" in body
    assert b"not a loopback address" not in call(app, method, path, b"localhost:8080")[1]
