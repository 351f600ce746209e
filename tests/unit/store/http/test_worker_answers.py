"""Answers of a worker as ASGI messages: one for each request, with the error that fits, and nothing
that counts behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from uuid import UUID

import pytest

from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import ProtectData, StorageUnavailable
from cellfeed.store.http.server import health
from cellfeed.store.http.server.app import WorkerApp
from cellfeed.store.http.server.cluster_metrics import ClusterMetrics
from cellfeed.store.http.server.listening import HttpListener, check_http_listener
from cellfeed.store.progress import Reason
from cellfeed.store.security.callers import TRUSTED

ROW = str(UUID(int=7))


class Answer(NamedTuple):
    status: int
    content: bytes

    @property
    def error(self) -> str:
        return str(json.loads(self.content)["error"])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path_factory.mktemp("answers")) as datastore:
        yield datastore


@pytest.fixture
def app(store: Datastore) -> Iterator[WorkerApp]:
    app = WorkerApp(store)
    yield app
    app.close()


def answer_into(
    sent: list[Any],
    app: WorkerApp,
    method: str,
    path: str,
    content: object = None,
    host: bytes = b"localhost",
) -> None:
    """Puts the ASGI messages of an answer into ``sent``, also of one that breaks off."""
    body = b"" if content is None else json.dumps(content).encode()
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(b"host", host), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 1),
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))


def call(app: WorkerApp, *request: Any, **more: Any) -> Answer:
    sent: list[Any] = []
    answer_into(sent, app, *request, **more)
    start, *bodies = sent
    return Answer(start["status"], b"".join(each.get("body", b"") for each in bodies))


async def breaks(*_: Any) -> None:
    raise ValueError("a defect")


@pytest.mark.parametrize("route", ["put_one", "put_many"])
def test_a_put_that_fails_unexpectedly_may_have_been_written(app: WorkerApp, route: str) -> None:
    app._bare_posts["/v1/trips/cells"] = route, breaks
    answer = call(app, "POST", "/v1/trips/cells", {})
    assert (answer.status, answer.error) == (504, "outcome_unknown")


def test_an_answer_that_has_begun_is_cut_and_never_completed(app: WorkerApp) -> None:
    async def begins(_scope: object, _receive: object, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError("a defect")

    app._bare_posts["/v1/trips/follow"] = "follow", begins
    sent: list[Any] = []
    with pytest.raises(ValueError, match="a defect"):
        answer_into(sent, app, "POST", "/v1/trips/follow", {})
    assert [each["type"] for each in sent] == ["http.response.start"]


@pytest.mark.parametrize("path", ["/health", "/nothing"])
def test_a_request_that_was_answered_is_no_longer_under_way(app: WorkerApp, path: str) -> None:
    call(app, "GET", path)
    assert app.metrics.in_flight == 0


@pytest.mark.parametrize(
    "host", [b"localhost.example", b"localhostile", b"127.0.0.1.example:80", b"x[::1]"]
)
def test_a_name_that_begins_as_a_loopback_name_is_foreign(app: WorkerApp, host: bytes) -> None:
    assert call(app, "GET", "/health", host=host).error == "invalid_request"


@pytest.mark.parametrize("host", [b"localhost", b"127.0.0.1:80", b"[::1]:80", b"[::1]", b""])
def test_a_loopback_name_is_answered(app: WorkerApp, host: bytes) -> None:
    assert call(app, "GET", "/health", host=host).status == 200


@pytest.mark.parametrize("host", ["10.0.0.1", "192.168.1.1", "0.0.0.0", "::", "example"])
def test_a_worker_binds_only_loopback(host: str) -> None:
    with pytest.raises(ProtectData):
        check_http_listener(HttpListener(host), "the worker")
    for each in ("127.0.0.2", "::1", "localhost"):
        check_http_listener(HttpListener(each), "the worker")


# --- health ---------------------------------------------------------------------------------------


def test_a_worker_with_a_dead_loop_is_not_ready(
    app: WorkerApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Reason("loop-dead", each, f"{each} is dead") for each in ("writer", "drain")]
    monkeypatch.setattr(health, "unready", lambda: found)
    for path in ("/readyz", "/health/ready"):
        answer = call(app, "GET", path)
        assert answer.status == 503
        said = json.loads(answer.content)
        assert said["reason"] == "writer is dead; drain is dead"
        assert [each["code"] for each in said["reasons"]] == ["loop-dead", "loop-dead"]
    for path in ("/livez", "/health/live"):
        assert call(app, "GET", path).status == 200


def test_a_worker_whose_storage_is_away_is_not_ready(
    app: WorkerApp, store: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        raise StorageUnavailable("its disk is gone")

    monkeypatch.setattr(store, "heads", away)
    answer = call(app, "GET", "/health")
    assert answer.status == 503
    assert json.loads(answer.content)["reason"] == "its disk is gone"


def test_an_epoch_is_shown_only_where_a_master_reports_it() -> None:
    status: dict[str, Any] = {"lag_cells": None, "lag_cells_max": None, "lag_s": None, "nodes": ()}
    clusters = [
        SimpleNamespace(name="c1", master="a", epoch=4, **status),
        SimpleNamespace(name="c2", master=None, epoch=-1, **status),
    ]
    metrics = ClusterMetrics(cast("Any", SimpleNamespace(status=lambda: clusters)))
    [epochs] = [each for each in metrics.collect() if each.name == "cellfeed_cluster_leader_epoch"]
    assert [(each.labels, each.value) for each in epochs.samples] == [({"cluster": "c1"}, 4)]


# --- reads and erasures ---------------------------------------------------------------------------


def test_an_erasure_without_an_answer_of_the_storage_is_unknown(
    app: WorkerApp, store: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_key: UUID) -> None:
        raise StorageUnavailable("no answer within 10 s")

    monkeypatch.setattr(store, "erase_row", away)
    answer = call(app, "DELETE", f"/v1/trips/rows/{ROW}")
    assert (answer.status, answer.error) == (504, "outcome_unknown")


def test_a_shard_is_asked_for_once(app: WorkerApp) -> None:
    twice = [{"shard": 3, "location": 0}, {"shard": 3, "location": 5}]
    answer = call(app, "POST", "/v1/trips/shards/cells", {"locations": twice})
    assert (answer.status, answer.error) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("route", "page", "key"),
    [
        ("get", "get_cells_page", {"row_key": ROW, "column_name": "BASE", "ref_key": 1}),
        ("latest", "get_cells_latest_page", {"row_key": ROW, "column_name": "BASE"}),
    ],
)
def test_a_page_of_cells_is_no_whole_answer(
    app: WorkerApp,
    store: Datastore,
    monkeypatch: pytest.MonkeyPatch,
    route: str,
    page: str,
    key: dict[str, Any],
) -> None:
    monkeypatch.setattr(store, page, lambda keys, read_from: [None] * (len(keys) - 1))
    path = f"/v1/trips/cells/{route}"
    assert call(app, "POST", path, {"keys": [key, key]}).error == "answer_too_large"
    assert call(app, "POST", path, {"keys": [key, key], "pages": True}).status == 200


# --- queries of an index --------------------------------------------------------------------------


@pytest.fixture
def behind(store: Datastore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that never comes to the places asked for."""
    monkeypatch.setattr(store.indexes, "behind", lambda *_: "it is 3 ids behind")
    monkeypatch.setattr(store.indexes, "pauses", lambda _seconds: [0.0, 0.0])


@pytest.mark.usefixtures("behind")
def test_a_query_of_an_index_that_is_behind_is_refused(app: WorkerApp) -> None:
    asked = {"shard_value": 1, "wait_for": [[0, 3]], "wait_s": 0.1}
    answer = call(app, "POST", "/v1/trips/indexes/byZone/query", asked)
    assert (answer.status, answer.error) == (503, "storage_unavailable")
    assert b"it is 3 ids behind within 0.1 s" in answer.content


def test_a_query_that_waits_is_not_answered_directly(app: WorkerApp) -> None:
    found = app.direct._find(b"/v1/trips/indexes/byZone/query")
    assert found is not None
    asked = json.dumps({"shard_value": 1, "wait_for": [[0, 3]]}).encode()
    assert not found[1](asked, lambda _: pytest.fail("it was answered"), TRUSTED)
