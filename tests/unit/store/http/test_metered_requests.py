"""Quotas over HTTP: a request of a debtor is refused before anything of it is done, also on the
way that answers usual requests directly; a stream slows down; others are served."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import QuotaExceeded
from cellfeed.store.http.server import metered
from cellfeed.store.http.server.app import WorkerApp
from cellfeed.store.http.server.callers import CALLER
from cellfeed.store.http.server.health import OPERATION_ROUTES
from cellfeed.store.http.server.metered import STREAM_PAUSE_MAX_S, admitted
from cellfeed.store.http.wakeup_links import SILENT_S
from cellfeed.store.security.access import Security
from cellfeed.store.security.callers import Caller
from cellfeed.store.security.peer_limits import Quota
from cellfeed.store.security.quotas import Quotas

CELL = (
    b'{"row_key":"5cb0f0a2-0000-4000-8000-000000000001","column_name":"BASE","ref_key":1,"body":{}}'
)


class Clock:
    now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def worker(tmp_path: Path, clock: Clock) -> Iterator[WorkerApp]:
    quotas = {"ANONYMOUS": Quota(requests_per_s=2, put_bytes_per_s=1_000)}
    with Datastore.open_embedded(tmp_path / "store") as datastore:
        app = WorkerApp(datastore, quotas=quotas)
        app._quotas._clock_s = clock
        yield app
        app.close()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """Puts of one worker meet in one loop."""
    with asyncio.Runner() as made:
        yield made


def asked(
    runner: asyncio.Runner, app: WorkerApp, method: str, path: str, content: bytes = b""
) -> tuple[int, Any, bytes]:
    """Status, headers and content of the answer."""
    messages: list[Any] = []

    async def ask() -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": content}

        async def send(message: Any) -> None:
            messages.append(message)

        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "app": None,
            "state": {},
        }
        await app(scope, receive, send)

    runner.run(ask())
    body = b"".join(each.get("body", b"") for each in messages[1:])
    return messages[0]["status"], dict(messages[0]["headers"]), body


def test_a_debtor_is_refused_with_the_time_of_its_debt(
    runner: asyncio.Runner, worker: WorkerApp, clock: Clock
) -> None:
    statuses = [asked(runner, worker, "POST", "/v1/trips/cell", CELL)[0] for _ in range(3)]
    assert statuses == [200, 200, 200]  # two at once, and the one that makes the debt
    status, headers, body = asked(runner, worker, "POST", "/v1/trips/cell", CELL)
    assert status == 429
    assert headers[b"retry-after"] == b"1"
    assert b"quota_exceeded" in body
    assert b'"definite":true' in body
    assert b'"retriable":true' in body
    clock.now_s += 0.6
    assert asked(runner, worker, "POST", "/v1/trips/cell", CELL)[0] == 200


def test_bytes_of_a_put_are_paid_for(
    runner: asyncio.Runner, worker: WorkerApp, clock: Clock
) -> None:
    large = CELL.replace(b"{}", b'{"a":"' + b"x" * 8_000 + b'"}')
    clock_at = clock.now_s
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metered, "STREAM_PAUSE_MAX_S", 0.01)
        assert asked(runner, worker, "POST", "/v1/trips/cell", large)[0] == 200
    assert clock.now_s == clock_at
    status, headers, _ = asked(runner, worker, "GET", "/v1/trips")
    assert status == 429
    assert 6 <= int(headers[b"retry-after"]) <= 8


def test_a_debtor_is_not_answered_directly_either(
    runner: asyncio.Runner, worker: WorkerApp
) -> None:
    head = (
        b"POST /v1/trips/cell HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % len(CELL)
    )
    answers: list[bytes] = []

    class Connection:
        ends = False

        def __init__(self, done: asyncio.Event) -> None:
            self._done = done

        def answered(self, answer: bytes) -> None:
            answers.append(answer)
            self._done.set()

    async def ask() -> list[bool]:
        taken = []
        heads = worker.direct.heads(None)
        for _ in range(4):
            done = asyncio.Event()
            taken.append(worker.direct.take(head + CELL, heads, Connection(done)))
            if taken[-1]:
                await done.wait()
        return taken

    assert runner.run(ask()) == [True, True, True, False]
    assert [each[:12] for each in answers] == [b"HTTP/1.1 200"] * 3
    assert asked(runner, worker, "POST", "/v1/trips/cell", CELL)[0] == 429


def scope_of(principal: str) -> Any:
    caller = Caller(principal, "token", "trips", Security({}, (), b""), lambda _: True)
    return {"path": "/v1/trips/cells", CALLER: caller}


def test_probes_and_metrics_answer_while_everybody_owes(
    runner: asyncio.Runner, worker: WorkerApp
) -> None:
    worker._quotas.spend("ANONYMOUS", requests=1_000)
    assert asked(runner, worker, "GET", "/v1/trips")[0] == 429
    free = [path for route in OPERATION_ROUTES for path in sorted(route.paths)]
    assert {"/livez", "/readyz", "/metrics"} <= set(free)
    for path in free:
        assert asked(runner, worker, "GET", path)[0] == 200, path


def test_a_stream_pauses_for_less_than_the_silence_of_a_dead_worker() -> None:
    assert STREAM_PAUSE_MAX_S <= SILENT_S / 2


def test_the_pieces_of_a_stream_wait_for_their_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, slept = Clock(), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.now_s += seconds

    monkeypatch.setattr("cellfeed.store.http.server.metered.asyncio.sleep", sleep)
    quotas = Quotas({"a": Quota(put_bytes_per_s=100, read_bytes_per_s=100)}, clock)
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"x" * 150, "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    async def puts() -> None:
        received, _ = admitted(quotas, scope_of("a"), "put_many", receive, send)
        for _ in range(4):
            assert len((await received())["body"]) == 150

    asyncio.run(puts())
    assert sum(slept) == pytest.approx(5)  # 600 bytes, and 100 were saved up
    slept.clear()

    async def reads() -> None:
        _, answered = admitted(quotas, scope_of("a"), "follow", receive, send)
        for more in (True, True, False):
            await answered({"type": "http.response.body", "body": b"y" * 150, "more_body": more})

    asyncio.run(reads())
    assert sum(slept) == pytest.approx(2)  # the last piece is paid for by the next request
    assert quotas.waits == 6
    assert quotas.waited_s == pytest.approx(7)
    with pytest.raises(QuotaExceeded):
        admitted(quotas, scope_of("a"), "read", receive, send)
    admitted(quotas, scope_of("b"), "read", receive, send)
    assert len(sent) == 3
