"""The client and answers that a healthy worker never gives: a scripted server says each attempt's
answer."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.errors import (
    CellConflict,
    CellfeedError,
    InvalidRequest,
    OutcomeUnknown,
    Overloaded,
    StorageUnavailable,
    UnknownDatastore,
)
from cellfeed.store.http.calls.workers import Worker
from cellfeed.store.http.client import Client
from tests.support.client_in_loop import ClientInLoop

ROW = UUID(int=7)


@pytest.fixture(autouse=True, params=["threads", "tasks"])
def kind_of_client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with both clients."""
    if request.param == "tasks":
        monkeypatch.setitem(globals(), "Client", ClientInLoop)


def answer(status: int, content: object) -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )


def error(kind: type[CellfeedError]) -> bytes:
    return answer(kind.http_status, kind("said so").as_json())


STORED = answer(200, {"outcome": "stored", "shard": 3, "added_id": 0, "error": None})
CUT = b""


@contextlib.contextmanager
def scripted(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives these answers, one connection each (the last one again and again), and
    keeps the requests."""
    requests: list[bytes] = []

    def talk(peer: socket.socket) -> None:
        requests.append(_request(peer))
        peer.sendall(answers[min(len(requests), len(answers)) - 1])

    with served(talk) as url:
        yield url, requests


@contextlib.contextmanager
def served(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that has one connection after another talked with, and closes it then. Its
    address."""
    ended = threading.Event()

    def serve(listener: socket.socket) -> None:
        while not ended.is_set():
            try:
                peer, _ = listener.accept()
            except OSError:  # shut down
                return
            with peer, contextlib.suppress(OSError):
                peer.settimeout(5)
                talk(peer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _request(peer: socket.socket) -> bytes:
    """The next request. Raises ConnectionError when there is none."""
    got = b""
    while b"\r\n\r\n" not in got:
        if not (piece := peer.recv(1 << 16)):
            raise ConnectionError
        got += piece
    head, _, body = got.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
    while len(body) < length:
        body += peer.recv(1 << 16)
    return head + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    "first",
    [
        CUT,
        error(OutcomeUnknown),
        error(Overloaded),
        error(StorageUnavailable),
        answer(502, b"<html>"),
        STORED[:-5],
    ],
)
def test_a_put_is_tried_again_until_it_is_answered(first: bytes) -> None:
    with scripted(first, STORED) as (url, requests), Client(url, "trips", timeout_s=10) as client:
        assert client.put_cell(ROW, "BASE", 1, {}).outcome is Outcome.STORED
        assert len(requests) == 2
        first_sent, again = (
            re.sub(rb"cellfeed-request: [0-9a-f]{16}\r\n", b"", request) for request in requests
        )
        assert first_sent == again
        assert len(first_sent) < len(requests[0])


@pytest.mark.parametrize(
    "after",
    [error(Overloaded), error(StorageUnavailable), error(UnknownDatastore), error(InvalidRequest)],
)
@pytest.mark.parametrize(
    "first", [CUT, error(OutcomeUnknown), answer(500, b"oops"), b"garbage\r\n\r\n"]
)
def test_a_refusal_after_an_open_attempt_leaves_the_put_unknown(first: bytes, after: bytes) -> None:
    with scripted(first, after) as (url, requests), Client(url, "trips", timeout_s=0.4) as client:
        with pytest.raises(OutcomeUnknown):
            client.put_cell(ROW, "BASE", 1, {})
        assert len(requests) >= 2


def test_a_conflict_after_an_open_attempt_is_a_conflict() -> None:
    with (
        scripted(CUT, error(CellConflict)) as (url, _),
        Client(url, "trips", timeout_s=10) as client,
        pytest.raises(CellConflict),
    ):
        client.put_cell(ROW, "BASE", 1, {})


@pytest.mark.parametrize("kind", [Overloaded, StorageUnavailable])
def test_refusals_alone_are_definite(kind: type[CellfeedError]) -> None:
    with scripted(error(kind)) as (url, requests), Client(url, "trips", timeout_s=0.3) as client:
        with pytest.raises(kind) as caught:
            client.put_cell(ROW, "BASE", 1, {})
        assert caught.value.definite
        assert len(requests) >= 2


def test_undecided_cells_of_a_batch_alone_are_sent_again() -> None:
    def results(*outcomes: dict[str, Any]) -> bytes:
        return answer(200, {"results": outcomes})

    unknown = {"outcome": "unknown", "shard": 1, "error": OutcomeUnknown("x").as_json()}
    failed = {"outcome": "failed", "shard": 1, "error": InvalidRequest("x").as_json()}
    exists = {"outcome": "exists", "shard": 1, "added_id": 4}
    with (
        scripted(results(exists, unknown, failed), results(exists)) as (url, requests),
        Client(url, "trips", timeout_s=10) as client,
    ):
        got = client.put_cells([(ROW, "BASE", ref_key, {"n": ref_key}) for ref_key in range(3)])
    assert [result.outcome.value for result in got] == ["exists", "exists", "failed"]
    assert [
        len(json.loads(request.partition(b"\r\n\r\n")[2])["cells"]) for request in requests
    ] == [3, 1]


@pytest.mark.parametrize(
    "after_refusal", [CUT, error(OutcomeUnknown), answer(200, {"results": []})]
)
def test_a_refused_cell_whose_next_attempt_has_an_open_end_is_unknown_and_not_failed(
    after_refusal: bytes,
) -> None:
    """Its next request may have stored it: ``failed`` says that nothing was written."""
    failed = {"outcome": "failed", "shard": 1, "error": Overloaded("x").as_json()}
    refused = {"outcome": "failed", "shard": 1, "error": InvalidRequest("x").as_json()}
    with (
        scripted(answer(200, {"results": [failed, refused]}), after_refusal) as (url, requests),
        Client(url, "trips", timeout_s=0.4) as client,
    ):
        got = client.put_cells([(ROW, "BASE", ref_key, {}) for ref_key in range(2)])
    assert len(requests) >= 2
    assert [result.outcome.value for result in got] == ["unknown", "failed"]
    assert isinstance(got[0].error, OutcomeUnknown)


@pytest.mark.parametrize("kind", [Overloaded, InvalidRequest])
def test_cells_that_are_refused_after_an_attempt_with_an_open_end_are_unknown(
    kind: type[CellfeedError],
) -> None:
    failed = {"outcome": "failed", "shard": 1, "error": kind("x").as_json()}
    exists = {"outcome": "exists", "shard": 1, "added_id": 4}
    with (
        scripted(CUT, answer(200, {"results": [failed, exists]}), error(Overloaded)) as (url, _),
        Client(url, "trips", timeout_s=0.4) as client,
    ):
        got = client.put_cells([(ROW, "BASE", ref_key, {}) for ref_key in range(2)])
    assert [result.outcome.value for result in got] == ["unknown", "exists"]


def test_cells_that_are_refused_again_and_again_have_failed() -> None:
    failed = {"outcome": "failed", "shard": 1, "error": Overloaded("x").as_json()}
    with (
        scripted(answer(200, {"results": [failed]}), error(Overloaded)) as (url, requests),
        Client(url, "trips", timeout_s=0.3) as client,
    ):
        [got] = client.put_cells([(ROW, "BASE", 1, {})])
    assert len(requests) >= 2
    assert got.outcome is Outcome.FAILED


def test_answers_that_break_the_contract_leave_a_put_unknown() -> None:
    for content in (b"{}", b"[", b'{"outcome":7}', b'{"outcome":"stored"', b'{"outcome":"new"}'):
        with (
            scripted(answer(200, content)) as (url, _),
            Client(url, "trips", timeout_s=1) as client,
            pytest.raises(OutcomeUnknown),
        ):
            client.put_cell(ROW, "BASE", 1, {})


def test_a_path_that_is_not_there_is_not_taken_for_a_missing_cell() -> None:
    wrong = answer(
        404, {"error": "unknown_route", "message": "no", "retriable": False, "definite": True}
    )
    with (
        scripted(wrong) as (url, _),
        Client(url, "trips", timeout_s=1) as client,
        pytest.raises(CellfeedError),
    ):
        client.get_cell(ROW, "BASE", 1)


def test_a_closed_client_refuses() -> None:
    client = Client("http://127.0.0.1:1", "trips")
    client.close()
    with pytest.raises(StorageUnavailable, match="closed"):
        client.get_row(ROW)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://127.0.0.1:1",
        "http://",
        "ftp://x",
        "http://h:99999",
        "http://h:1/path",
        "http://h:1?x",
    ],
)
def test_an_address_that_is_no_worker_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        Worker(url)


def test_a_client_needs_a_worker_a_name_and_a_deadline() -> None:
    wrong: list[tuple[Any, str]] = [
        ([], "trips"),
        ("http://h:1", "Trips!"),
        ("http://h:1", ""),
    ]
    for arguments in wrong:
        with pytest.raises(InvalidRequest):
            Client(*arguments)
    with pytest.raises(InvalidRequest, match="timeout_s"):
        Client("http://h:1", "trips", timeout_s=0)


KEPT = STORED.replace(b"connection: close\r\n", b"")


def test_one_connection_serves_one_request_after_another() -> None:
    connections: list[int] = []

    def talk(peer: socket.socket) -> None:
        connections.append(0)
        while True:
            _request(peer)
            connections[-1] += 1
            peer.sendall(KEPT)

    with served(talk) as url:
        with Client(url, "trips", timeout_s=10) as client:
            assert {client.put_cell(ROW, "BASE", n, {}).outcome for n in range(20)} == {
                Outcome.STORED
            }
        assert connections == [20]


def test_a_kept_connection_that_the_worker_closes_only_costs_another_attempt() -> None:
    connections: list[int] = []

    def talk(peer: socket.socket) -> None:
        connections.append(0)
        _request(peer)
        peer.sendall(KEPT)  # and closes, which it does not say: as a worker does that is killed

    with served(talk) as url, Client(url, "trips", timeout_s=10) as client:
        assert {client.put_cell(ROW, "BASE", n, {}).outcome for n in range(20)} == {Outcome.STORED}
        assert len(connections) == 20
