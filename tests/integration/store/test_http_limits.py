"""Requests that do not come to their end: they cost little memory, and keep nobody out."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import BodiesFull
from cellfeed.store.http.client import Client
from cellfeed.store.http.server import app, bodies, connections, room
from cellfeed.store.http.server.bodies import BODIES
from tests.support.waiting import wait_until
from tests.support.worker_thread import worker_thread

pytestmark = pytest.mark.integration

KIB, MIB = 1 << 10, 1 << 20
POST = b"POST /v1/trips/cells HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@pytest.fixture
def url(datastore: Datastore) -> Iterator[str]:
    with worker_thread(datastore) as found:
        yield found
    assert len(BODIES) == BODIES.bytes == 0


@contextmanager
def peer(url: str) -> Iterator[socket.socket]:
    with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=20) as made:
        yield made


def answer(to: socket.socket) -> tuple[int, str]:
    """Status and error code, up to the end of the connection."""
    received = b""
    while piece := to.recv(1 << 16):
        received += piece
    head, _, content = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(content)["error"]


def trickle(to: socket.socket) -> None:
    """Sends a byte now and then, for much longer than any limit here, or until the peer answers or
    the connection ends."""
    for _ in range(400):
        try:
            to.sendall(b"a")
        except OSError:
            return
        if select.select([to], [], [], 0.05)[0]:
            return
    pytest.fail("it was not cut off")


def is_cut(from_: socket.socket) -> bool:
    try:
        while from_.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


def serves(url: str) -> bool:
    with Client(url, "trips", timeout_s=20) as client:
        return client.put_cell(uuid4(), "BASE", 1, {}).added_id is not None


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"GET /v1/trips?a=" + b"a" * 9 * KIB + b" HTTP/1.1\r\n\r\n", (414, "url_too_long")),
        (
            b"GET /v1/trips HTTP/1.1\r\n" + b"x-a: " + b"a" * 70 * KIB + b"\r\n\r\n",
            (431, "head_too_large"),
        ),
        (
            b"GET /v1/trips HTTP/1.1\r\n" + b"x-a: aaaaaaaaaa\r\n" * 6_000 + b"\r\n",
            (431, "head_too_large"),
        ),
    ],
)
def test_a_long_head_is_refused(url: str, head: bytes, expected: tuple[int, str]) -> None:
    with peer(url) as one:
        one.sendall(head)
        assert answer(one) == expected
    assert serves(url)


def test_a_head_of_usual_length_is_not_refused(url: str) -> None:
    with peer(url) as one:
        fields = b"".join(b"x-%d: %b\r\n" % (number, b"a" * KIB) for number in range(60))
        one.sendall(b"GET /v1/nothing HTTP/1.1\r\nhost: localhost\r\n" + fields)
        one.sendall(b"connection: close\r\n\r\n")
        assert answer(one)[0] == 404


def test_a_field_without_end_is_cut_off_before_it_takes_memory(url: str) -> None:
    with peer(url) as one:
        one.sendall(b"GET /v1/trips HTTP/1.1\r\nx-a: ")
        sent = 0
        try:
            while sent < 64 * MIB:
                sent += one.send(b"a" * 64 * KIB)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert sent < 16 * MIB, "the buffers of both sockets take some"
    assert serves(url)


def test_a_slow_head_has_its_own_time_out(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    with peer(url) as slow, peer(url) as silent:
        slow.sendall(b"GET /v1/trips HTTP/1.1\r\nx-a: ")
        trickle(slow)
        assert answer(slow) == (408, "request_timed_out")
        silent.settimeout(0.5)
        with pytest.raises(TimeoutError):
            silent.recv(1)  # it has not begun a request: it is idle
    assert serves(url)


def test_a_slow_body_has_its_own_time_out(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_S", 0.2)
    monkeypatch.setattr(connections, "UNREAD_REST_S", 0.2)
    with peer(url) as slow:
        slow.sendall(POST + b"content-length: 10000\r\n\r\n{")
        received = b""
        while b"request_timed_out" not in received:
            received += slow.recv(1 << 16)
        assert received.startswith(b"HTTP/1.1 408 ")
        trickle(slow)
        assert is_cut(slow), "and the rest of it is not waited for"
    assert len(BODIES) == BODIES.bytes == 0


def test_endless_bodies_leave_memory_for_other_requests(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "BODIES_BYTES_MAX", 4 * MIB)
    refused, held = 0, 0
    with ExitStack() as stack:
        for _ in range(6):
            one = stack.enter_context(peer(url))
            one.sendall(POST + b"content-length: %d\r\n\r\n" % (8 * MIB))
            one.sendall(b" " * MIB)
            wait_until(
                lambda: BODIES.bytes >= MIB * (held + 1) or _has_answer(one, BodiesFull.code),  # noqa: B023
                "it is read, or refused",
            )
            if BODIES.bytes >= MIB * (held + 1):
                held += 1
            else:
                refused += 1
        assert held >= 3
        assert refused >= 1
        assert BODIES.bytes <= 5 * MIB
        assert serves(url), "a small body is read"
    wait_until(lambda: BODIES.bytes == len(BODIES) == 0, "their memory is free")


def _has_answer(of: socket.socket, code: str) -> bool:
    of.settimeout(0.05)
    try:
        return code.encode() in of.recv(1 << 16, socket.MSG_PEEK)
    except TimeoutError:
        return False


def test_incoming_bodies_take_no_place_of_requests(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "REQUESTS_MAX", 4)
    monkeypatch.setattr(bodies, "COMING_MAX", 5)
    with ExitStack() as stack:
        slow = [stack.enter_context(peer(url)) for _ in range(8)]
        for number, each in enumerate(slow):
            each.sendall(POST + b"content-length: 100\r\n\r\n{")
            wait_until(lambda: len(BODIES) == min(number + 1, 5), "it comes")  # noqa: B023
        for each in slow[:3]:
            wait_until(lambda: _has_answer(each, "request_timed_out"), "it made room")  # noqa: B023
        assert not _has_answer(slow[3], "request_timed_out")
        assert serves(url)


def test_beyond_the_most_connections_an_idle_one_is_closed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "CONNECTIONS_MAX", 4)
    with ExitStack() as stack:
        peers = []
        for _ in range(8):
            peers.append(stack.enter_context(peer(url)))
            peers[-1].sendall(POST + b"content-length: 100\r\n\r\n{")
        assert all(is_cut(each) for each in peers[:4]), "those that have been there longest"
        assert serves(url)


def test_a_refusal_is_not_mixed_with_an_answer_under_way(url: str) -> None:
    with peer(url) as one:
        one.sendall(
            b"POST /v1/trips/cells HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        assert one.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        one.sendall(b"no chunk\r\n")
        received = b""
        try:
            while piece := one.recv(1 << 16):
                received += piece
        except ConnectionResetError:
            pass
        assert b"HTTP/1.1" not in received
