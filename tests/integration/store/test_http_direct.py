"""Puts that are answered on their connection: in order, whole, and as all others."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError
from cellfeed.store.failpoints import unwatch_failpoint, watch_failpoint
from cellfeed.store.http.server import app, commits, connections, puts, responses
from cellfeed.store.http.server.connections import Connection
from cellfeed.store.http.server.direct import DirectRequests
from tests.support.http_calls import call
from tests.support.worker_thread import worker_thread

pytestmark = pytest.mark.integration


def put_json(row: UUID, ref_key: int = 1, **body: Any) -> bytes:
    return json.dumps(
        {"row_key": str(row), "column_name": "BASE", "ref_key": ref_key, "body": body}
    ).encode()


def post(content: bytes, number: int, *more: bytes) -> bytes:
    fields = b"".join(field + b"\r\n" for field in more)
    return (
        b"POST /v1/trips/cell HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"cellfeed-request: %d\r\n%bcontent-length: %d\r\n\r\n%b"
        % (number, fields, len(content), content)
    )


def read_answers(peer: socket.socket, count: int) -> list[tuple[int, int, Any]]:
    """Of each its status, the request number that it repeats, and its document."""
    kept = b""
    found: list[tuple[int, int, Any]] = []
    while len(found) < count:
        piece = peer.recv(1 << 16)
        assert piece, "the connection ended before all was answered"
        kept += piece
        while (end := kept.find(b"\r\n\r\n")) >= 0:
            head = kept[:end].decode()
            length = re.search(r"content-length: (\d+)", head)
            number = re.search(r"cellfeed-request: (\d+)", head)
            assert length is not None
            assert number is not None
            if len(kept) < end + 4 + int(length[1]):
                break
            content, kept = kept[end + 4 :][: int(length[1])], kept[end + 4 + int(length[1]) :]
            found.append((int(head.split()[1]), int(number[1]), json.loads(content)))
    assert not kept
    return found


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The requests that were taken directly."""
    found: list[bytes] = []
    take = DirectRequests.take

    def noted(self: DirectRequests, data: bytes, heads: Any, connection: Any) -> bool:
        if direct := take(self, data, heads, connection):
            found.append(data)
        return direct

    monkeypatch.setattr(DirectRequests, "take", noted)
    return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def port(store: Datastore) -> Iterator[int]:
    with worker_thread(store) as url:
        yield int(url.rpartition(":")[2])


@pytest.fixture
def peer(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connected:
        yield connected


class HeldCommits:
    """Commits that wait until the block is left."""

    def __init__(self) -> None:
        self.reached, self._free = threading.Event(), threading.Event()

    def __enter__(self) -> HeldCommits:
        watch_failpoint("sqlite.put.before_commit", self._hold)
        return self

    def _hold(self) -> None:
        self.reached.set()
        assert self._free.wait(20)

    def free(self) -> None:
        self._free.set()

    def __exit__(self, *_: object) -> None:
        self.free()
        unwatch_failpoint("sqlite.put.before_commit")


def test_a_direct_put_is_answered_as_any_other(
    port: int, peer: socket.socket, taken: list[bytes]
) -> None:
    row = uuid4()
    for number, (content, status) in enumerate(
        [(put_json(row, n=1), 200), (put_json(row, n=1), 200), (put_json(row, n=2), 409)]
    ):
        direct, usual = post(content, number), post(content, number, b"x-any: thing")
        peer.sendall(direct)
        [first] = read_answers(peer, 1)
        peer.sendall(usual)
        [second] = read_answers(peer, 1)
        assert taken == [direct]
        assert first[:2] == second[:2] == (status, number)
        if first[2].get("outcome") == "stored":
            first[2]["outcome"] = "exists"
        assert first[2] == second[2]
        taken.clear()
    text = call(port, "GET", "/metrics")[2].decode()
    assert 'cellfeed_http_requests_total{route="put_one",status="200"} 4.0' in text
    assert 'cellfeed_http_requests_total{route="put_one",status="409"} 2.0' in text
    assert 'cellfeed_http_cells_put_total{outcome="conflict"} 2.0' in text
    assert "cellfeed_http_requests_in_flight 1.0" in text  # the question itself
    assert "cellfeed_http_put_seconds_count 6.0" in text


def test_answers_have_the_order_of_their_requests_on_every_path(
    store: Datastore, peer: socket.socket, taken: list[bytes]
) -> None:
    rows = [uuid4() for _ in range(40)]
    requests = [
        (post(b"at once", n), 400)
        if n % 5 == 1
        else (post(put_json(row), n, *([b"x-any: thing"] if n % 3 == 1 else [])), 200)
        for n, row in enumerate(rows)
    ]
    with HeldCommits() as held:
        peer.sendall(requests[0][0])
        assert held.reached.wait(20)
        for request, _ in requests[1:]:
            for half in (request[:97], request[97:]):
                peer.sendall(half)
        held.free()
        answers = read_answers(peer, len(rows))
    assert [answer[:2] for answer in answers] == [
        (status, n) for n, (_, status) in enumerate(requests)
    ]
    assert taken[0] == requests[0][0]
    assert [bool(store.get_row(row)) for row in rows] == [status == 200 for _, status in requests]


def test_a_request_that_arrives_in_pieces_is_read_by_one_reader(
    peer: socket.socket, taken: list[bytes]
) -> None:
    row = uuid4()
    for cut in range(1, len(post(put_json(row), 1)), 7):
        request = post(put_json(row), 1)
        peer.sendall(request[:cut])
        peer.sendall(request[cut:])
        peer.sendall(post(put_json(row), 2))
        assert [answer[:2] for answer in read_answers(peer, 2)] == [(200, 1), (200, 2)]


@pytest.mark.parametrize("as_body", [False, True])
def test_a_part_of_a_request_that_looks_like_a_put_is_no_put(
    store: Datastore, peer: socket.socket, taken: list[bytes], as_body: bool
) -> None:
    inner, outer = uuid4(), uuid4()
    looks = post(put_json(inner), 9)
    head = post(b"x" * len(looks), 1)[: -len(looks)]
    peer.sendall(head if as_body else b"POST /v1/trips/cell HTTP/1.1\r\nx-any: ")
    peer.settimeout(0.2)
    with pytest.raises(TimeoutError):  # it has been read by itself
        peer.recv(1)
    peer.settimeout(20)
    peer.sendall(looks)
    assert read_answers(peer, 1)[0][:2] == ((400, 1) if as_body else (200, 9))
    assert not taken
    peer.sendall(post(put_json(outer), 2))
    assert read_answers(peer, 1)[0][:2] == (200, 2)
    assert (store.get_cell(inner, "BASE", 1) is None) is as_body


def test_a_put_behind_a_request_under_way_is_answered_behind_it(
    store: Datastore, peer: socket.socket, taken: list[bytes]
) -> None:
    with HeldCommits() as held:
        peer.sendall(post(put_json(uuid4()), 1, b"x-any: thing"))
        assert held.reached.wait(20)
        for number in range(2, 6):
            peer.sendall(post(put_json(uuid4()), number))
        peer.settimeout(0.2)
        with pytest.raises(TimeoutError):
            peer.recv(1)
        assert not taken
        peer.settimeout(20)
        held.free()
        assert [answer[:2] for answer in read_answers(peer, 5)] == [
            (200, number) for number in range(1, 6)
        ]


def test_a_worker_that_ends_answers_the_puts_that_it_took(
    store: Datastore, taken: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = uuid4()
    shutdown = Connection.shutdown
    with HeldCommits() as held:

        def shut(self: Connection) -> None:
            shutdown(self)
            held.free()

        monkeypatch.setattr(Connection, "shutdown", shut)
        with worker_thread(store) as url:
            peer = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20)
            peer.sendall(post(put_json(row), 5))
            assert held.reached.wait(20)
    with peer:
        [answer] = read_answers(peer, 1)
        assert answer[:2] == (200, 5)
        assert peer.recv(1) == b""
    assert taken
    assert store.get_cell(row, "BASE", 1) is not None


def test_a_peer_that_disconnects_leaves_its_cell_and_no_resource(
    store: Datastore, port: int, taken: list[bytes]
) -> None:
    row = uuid4()
    with HeldCommits() as held:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as gone:
            gone.sendall(post(put_json(row), 1))
            assert held.reached.wait(20)
        held.free()
        assert call(port, "POST", "/v1/trips/cell", put_json(uuid4()))[0] == 200
    assert taken
    assert store.get_cell(row, "BASE", 1) is not None
    assert b"cellfeed_http_requests_in_flight 1.0" in call(port, "GET", "/metrics")[2]


def test_a_put_without_a_commit_in_time_is_unknown(
    peer: socket.socket, taken: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "PUT_TIMEOUT_S", 0.2)
    row = uuid4()
    with HeldCommits() as held:
        peer.sendall(post(put_json(row), 1))
        assert held.reached.wait(20)
        [answer] = read_answers(peer, 1)
        assert answer[2]["error"] == "outcome_unknown"
    assert taken
    monkeypatch.undo()
    peer.sendall(post(put_json(row), 2))  # the late answer is nobody's
    [answer] = read_answers(peer, 1)
    assert (answer[1], answer[2]["outcome"]) == (2, "exists")


def test_beyond_the_requests_under_way_a_put_is_refused(
    store: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "REQUESTS_MAX", 1)
    with worker_thread(store) as url, HeldCommits() as held:
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=20) as first:
            first.sendall(post(put_json(uuid4()), 1))
            assert held.reached.wait(20)
            with socket.create_connection(("127.0.0.1", port), timeout=20) as second:
                second.sendall(post(put_json(uuid4()), 2))
                [refused] = read_answers(second, 1)
            assert (refused[0], refused[2]["error"]) == (429, "overloaded")
            held.free()
            assert read_answers(first, 1)[0][0] == 200


def test_a_put_that_cannot_be_queued_goes_the_usual_way(
    store: Datastore, peer: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise CellfeedError("no")

    monkeypatch.setattr(commits.LoopCommits, "put_then", refuse)
    peer.sendall(post(put_json(uuid4()), 1))
    assert read_answers(peer, 1)[0][0] == 500


def test_a_connection_with_direct_puts_alone_ends_when_it_is_idle(
    port: int, taken: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "KEEP_ALIVE_S", 0.5)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
        peer.sendall(post(put_json(uuid4()), 1))
        assert read_answers(peer, 1)[0][0] == 200
        assert peer.recv(1) == b""
    assert taken


def test_a_put_that_waits_is_neither_idle_nor_silent(
    port: int, taken: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "KEEP_ALIVE_S", 0.0)
    monkeypatch.setattr(Connection, "silent_s", 0.0)
    looked = threading.Event()
    looks = 0
    cut_off = Connection.cut_off_when_stalled

    def noted(self: Connection, now: float) -> bool:
        nonlocal looks
        cut = cut_off(self, now)
        looks += 1
        if looks >= 2:
            looked.set()
        return cut

    with HeldCommits() as held, socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
        peer.sendall(post(put_json(uuid4()), 1))
        assert held.reached.wait(20)
        monkeypatch.setattr(Connection, "cut_off_when_stalled", noted)
        assert looked.wait(20)
        held.free()
        assert read_answers(peer, 1)[0][0] == 200
    assert taken


def test_an_answer_that_cannot_be_made_is_an_error_and_not_silence(
    peer: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = responses.encoded

    def fails_once(message: Any, *, msgpack: bool) -> bytes:
        monkeypatch.setattr(puts, "encoded", encoded)
        raise MemoryError

    monkeypatch.setattr(puts, "encoded", fails_once)
    peer.sendall(post(put_json(uuid4()), 3))
    [answer] = read_answers(peer, 1)
    assert (answer[1], answer[2]["error"]) == (3, "outcome_unknown")
