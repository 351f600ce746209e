"""The matrix of rights of HTTP: every route of a worker is on this list with the right that it asks
for. A route without a row fails. Without credentials it answers 401, with every right but its own
403, which names the right, and with that one it answers.

Where no credentials are asked for, no route answers somebody who names another host."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pytest

from cellfeed.store.datastore import Datastore
from cellfeed.store.http.server.app import WorkerApp
from cellfeed.store.http.server.callers import SUBJECT, Callers
from cellfeed.store.security.access import Security
from cellfeed.store.security.authority import Authority
from cellfeed.store.security.rights import Acl, Effect

ROW: Final = "00000000-0000-4000-8000-000000000000"
PUT: Final = {"row_key": ROW, "column_name": "BASE", "ref_key": 1, "body": {}}
ALL: Final = ("datastore", "trips")
BASE: Final = ("column", "BASE")


class Route(NamedTuple):
    """``rights``: any one of them is enough: operation, kind, name. ``query`` and ``body`` make a
    request that the route carries out, or refuses for another reason."""

    rights: tuple[tuple[str, str, str], ...]
    query: str = ""
    body: object = {}


READ_BASE: Final = (("read", *BASE), ("read", *ALL))
PUT_BASE: Final = (("put", *BASE), ("put", *ALL))
READ_ALL: Final = (("read", *ALL),)
SOME: Final = (("describe", *ALL), ("read", *BASE), ("put", *ALL))
CELL: Final = f"row_key={ROW}&column_name=BASE"
KEY: Final = {"row_key": ROW, "column_name": "BASE"}
LOCATION: Final = {"shard": 0, "location": 0}

ROUTES: Final[dict[tuple[str, str], Route]] = {
    ("get", "/livez"): Route(()),
    ("get", "/readyz"): Route(SOME),
    ("get", "/health"): Route(SOME),
    ("get", "/health/live"): Route(SOME),
    ("get", "/health/ready"): Route(SOME),
    ("get", "/metrics"): Route((("operate", *ALL),)),
    ("post", "/v1/{datastore}/cell"): Route(PUT_BASE, body=PUT),
    ("get", "/v1/{datastore}/cell"): Route(READ_BASE, query=f"{CELL}&ref_key=1"),
    ("get", "/v1/{datastore}/latest"): Route(READ_BASE, query=CELL),
    ("get", "/v1/{datastore}/row"): Route(READ_ALL, query=f"row_key={ROW}"),
    ("post", "/v1/{datastore}/cells"): Route(PUT_BASE, body={"cells": [PUT]}),
    ("post", "/v1/{datastore}/cells/get"): Route(READ_BASE, body={"keys": [{**KEY, "ref_key": 1}]}),
    ("post", "/v1/{datastore}/cells/latest"): Route(READ_BASE, body={"keys": [KEY]}),
    ("post", "/v1/{datastore}/rows"): Route(READ_ALL, body={"row_keys": [ROW]}),
    ("delete", "/v1/{datastore}/rows/{row_key}"): Route((("erase", *ALL),)),
    ("get", "/v1/{datastore}/shards"): Route(SOME),
    ("get", "/v1/{datastore}/shards/{shard}/cells"): Route(READ_ALL),
    ("post", "/v1/{datastore}/shards/cells"): Route(READ_ALL, body={"locations": [LOCATION]}),
    ("post", "/v1/{datastore}/indexes/{index}/query"): Route(READ_ALL, body={"shard_value": 1}),
    ("post", "/v1/{datastore}/wait"): Route(
        (("describe", "group", "billing"), ("read", "group", "bill*")),
        body={"token": "", "trigger": "billing", "timeout_s": 0},
    ),
    ("post", "/v1/{datastore}/wakeups"): Route(SOME, body={"worker": "another one"}),
    # A shard that is not there: a follower that begins does not end.
    ("post", "/v1/{datastore}/follow"): Route(READ_BASE, body={"columns": ["BASE"], "shards": [9]}),
}
OPEN: Final = ("get", "/livez")
DOCUMENT: Final = ("get", "/schema/openapi.json")


EVERY: Final = {right for route in ROUTES.values() for right in route.rights}


def acl(principal: str, right: tuple[str, str, str], effect: Effect = "allow") -> Acl:
    operation, kind, name = right
    return Acl(principal, kind, name, operation, effect)


def implied(right: tuple[str, str, str], needed: tuple[str, str, str]) -> bool:
    """Whether a right includes another one: any right to cells describes the datastore."""
    cells = ("datastore", "column")
    if needed[0] == "describe":
        return right[1] in cells if needed[1] in cells else right[1] == needed[1]
    return right == needed


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerApp]:
    """Principals: ``nobody``; ``others <route>`` with every right that the route does not ask for;
    ``<right>`` with that one; ``denied <right>`` with that one, and its denial."""
    acls = []
    for place, route in ROUTES.items():
        acls += [
            acl(f"others {place}", right)
            for right in EVERY
            if not any(implied(right, each) for each in route.rights)
        ]
        for right in route.rights:
            acls += [acl(str(right), right), acl(f"denied {right}", right)]
            acls.append(acl(f"denied {right}", right, "deny"))
    with Datastore.open_embedded(tmp_path_factory.mktemp("guarded")) as datastore:
        authority = Authority(datastore.state)
        authority.security = Security({}, acls, b"")
        app = WorkerApp(datastore, callers=Callers("trips", authority, required=True))
        yield app
        app.close()


@pytest.mark.parametrize(("method", "path"), sorted(ROUTES.keys() - {OPEN}))
def test_a_route_answers_principals_with_its_right_alone(
    guarded: WorkerApp, method: str, path: str
) -> None:
    route = ROUTES[method, path]

    def told(principal: str | None) -> tuple[int, str, str]:
        status, body = call(guarded, method, filled(path), b"feed.example", route, principal)
        found = json.loads(body) if body.startswith(b"{") else {}
        return status, found.get("error", ""), found.get("message", "")

    assert told(None)[:2] == (401, "unauthenticated")
    for principal in ("nobody", f"others {(method, path)}"):
        status, code, message = told(principal)
        assert (status, code) == (403, "forbidden"), principal
        assert "has no right to" in message
    for right in route.rights:
        assert told(str(right))[0] not in (401, 403), right
        if all(operation != "describe" for operation, _, _ in route.rights):  # reading implies it
            assert told(f"denied {right}")[0] == 403, right


def test_the_path_for_probes_alone_is_open(guarded: WorkerApp) -> None:
    assert call(guarded, *OPEN, b"feed.example") == (200, b"live")


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerApp]:
    with Datastore.open_embedded(tmp_path_factory.mktemp("routes")) as datastore:
        app = WorkerApp(datastore)
        yield app
        app.close()


def call(
    app: WorkerApp,
    method: str,
    path: str,
    host: bytes,
    route: Route | None = None,
    principal: str | None = None,
) -> tuple[int, bytes]:
    """The status and body of an answer."""
    sent: list[Any] = []
    content = b"{}" if route is None else json.dumps(route.body).encode()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method.upper(),
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"" if route is None else route.query.encode(),
        SUBJECT: principal,
        "headers": [(b"host", host), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 1),
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

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
    } == ROUTES.keys()


def filled(path: str) -> str:
    return path.format(datastore="trips", shard=0, index="byZone", row_key=ROW)


@pytest.mark.parametrize(
    ("method", "path"), sorted({*ROUTES, DOCUMENT, ("get", "/schema"), ("get", "/nothing")})
)
def test_a_foreign_host_is_refused_on_every_route(app: WorkerApp, method: str, path: str) -> None:
    path = filled(path)
    status, body = call(app, method, path, b"feed.example:8080")
    assert (status, json.loads(body)["error"]) == (400, "invalid_request")
    assert b"not a loopback address" in body
    assert b"not a loopback address" not in call(app, method, path, b"localhost:8080")[1]
