"""Answers to another question than the client's: each is an error, never another caller's cell. And
a fork, after which no socket is shared."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.errors import CellfeedError, OutcomeUnknown, StorageUnavailable, WrongAnswer
from cellfeed.store.http.client import Client
from tests.support.client_in_loop import ClientInLoop
from tests.unit.store.http.test_http_client import _request

ROW, OTHER = UUID(int=7), UUID(int=8)
SHARDS = 4
HEAD = {
    "log_start": 0,
    "watermark": 9,
    "next_added_id": 9,
    "leader_epoch": 0,
    "last_created_at_us": 0,
}


@pytest.fixture(autouse=True, params=["threads", "tasks"])
def kind_of_client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with both clients."""
    if request.param == "tasks":
        monkeypatch.setitem(globals(), "Client", ClientInLoop)


def cell(row: UUID = ROW, column: str = "BASE", ref_key: int = 1, **more: object) -> dict[str, Any]:
    place = {
        "shard": shard_of(row.bytes, SHARDS),
        "added_id": 4,
        "created_at": "2026-01-01T00:00:00Z",
    }
    return {
        "row_key": str(row),
        "column_name": column,
        "ref_key": ref_key,
        "body": {},
        **place,
        **more,
    }


def piece(shard: int = 1, **more: Any) -> dict[str, Any]:
    return {"shard": shard, "cells": [cell(shard=shard)], "next_location": 5, "head": HEAD, **more}


HEADS = {"datastore": "trips", "shards": SHARDS, "heads": [HEAD] * SHARDS}
PUT: dict[str, Any] = {"outcome": "stored", "shard": shard_of(ROW.bytes, SHARDS), "added_id": 0}
ELSEWHERE = {**PUT, "shard": (PUT["shard"] + 1) % SHARDS}


class KeptConnections:
    """A server that keeps connections open, and answers each request as the test says; requests by
    connection."""

    def __init__(self, content: Callable[[bytes], object], echo: Callable[[bytes], bytes]) -> None:
        self._content, self._echo = content, echo
        self.requests: list[list[bytes]] = []

    def talk(self, peer: socket.socket) -> None:
        self.requests.append(mine := [])
        with peer, contextlib.suppress(OSError):
            while True:
                mine.append(request := _request(peer))
                body = json.dumps(self._content(request)).encode()
                peer.sendall(
                    b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%b\r\n%b"
                    % (len(body), self._echo(request), body)
                )


def echoed(request: bytes) -> bytes:
    found = re.search(rb"cellfeed-request: ([0-9a-f]+)\r\n", request)
    assert found is not None
    return found[0]


@contextlib.contextmanager
def answering(
    content: Callable[[bytes], object], echo: Callable[[bytes], bytes] = lambda _: b""
) -> Iterator[tuple[str, KeptConnections]]:
    server = KeptConnections(content, echo)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(
                        target=server.talk, args=(listener.accept()[0],), daemon=True
                    ).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def by_route(answer: object) -> Callable[[bytes], object]:
    """The heads where they are asked for; the answer for everything else."""
    return lambda request: HEADS if b"GET /v1/trips/shards HTTP" in request else answer


READS: list[tuple[Callable[[Client], object], object, list[object]]] = [
    (
        lambda c: c.get_cell(ROW, "BASE", 1),
        cell(),
        [cell(OTHER), cell(column="base"), cell(ref_key=2)],
    ),
    (
        lambda c: c.get_cell_latest(ROW, "BASE"),
        cell(ref_key=9),
        [cell(OTHER), cell(column="STATUS")],
    ),
    (
        lambda c: c.get_row(ROW),
        {"cells": {"BASE": cell()}},
        [{"cells": {"BASE": cell(OTHER)}}, {"cells": {"BASE": cell(column="STATUS")}}],
    ),
    (
        lambda c: c.get_cells([(ROW, "BASE", 1), (OTHER, "BASE", 1)]),
        {"cells": [cell(), None]},
        [
            {"cells": []},
            {"cells": [cell()]},
            {"cells": [cell(OTHER), cell()]},
            {"cells": [None, cell(OTHER, ref_key=2)]},
        ],
    ),
    (
        lambda c: c.get_cells_latest([(ROW, "BASE")]),
        {"cells": [cell(ref_key=3)]},
        [{"cells": []}, {"cells": [cell(OTHER)]}, {"cells": [cell(), cell()]}],
    ),
    (
        lambda c: c.get_rows([ROW]),
        {"rows": [{"cells": {"BASE": cell()}}]},
        [{"rows": []}, {"rows": [{"cells": {"BASE": cell(OTHER)}}]}],
    ),
    (
        lambda c: c.get_cells_for_shard(1, 4, 10),
        piece(),
        [
            piece(2),
            piece(cells=[cell(shard=2)]),
            piece(cells=[cell(shard=1, added_id=3)]),
            piece(next_location=3),
            piece(cells=[cell(shard=1)] * 2),
        ],
    ),
    (
        lambda c: c.get_cells_for_shards({1: 4, 2: 4}, 10),
        {"shards": [piece(1), piece(2)]},
        [
            {"shards": [piece(1)]},
            {"shards": [piece(1), piece(3)]},
            {"shards": [piece(1), piece(2, next_location=3)]},
        ],
    ),
    (
        lambda c: c.get_cells_for_shard(1, 0, 1),
        piece(),
        [piece(cells=[cell(shard=1, added_id=n) for n in (3, 4)])],
    ),
]


@pytest.mark.parametrize(
    ("read", "right", "wrong"),
    [(read, right, wrong) for read, right, many in READS for wrong in many],
)
def test_a_read_that_is_answered_with_something_else_is_an_error(
    read: Callable[[Client], object], right: object, wrong: object
) -> None:
    with answering(by_route(right)) as (url, _), Client(url, "trips", timeout_s=10) as client:
        assert read(client)
    with answering(by_route(wrong)) as (url, server), Client(url, "trips", timeout_s=10) as client:
        with pytest.raises(WrongAnswer) as caught:
            read(client)
        assert caught.value.retriable
        with pytest.raises(WrongAnswer):
            read(client)
        assert len(server.requests) == 2, "the connection was used again"


@pytest.mark.parametrize(
    ("read", "answer"),
    [
        (lambda c, how: c.get_cell(ROW, "BASE", 1, **how), cell()),
        (lambda c, how: c.get_cell_latest(ROW, "BASE", **how), cell()),
        (lambda c, how: c.get_row(ROW, **how), {"cells": {"BASE": cell()}}),
        (lambda c, how: c.get_cells([(ROW, "BASE", 1)], **how), {"cells": [cell()]}),
        (lambda c, how: c.get_cells_latest([(ROW, "BASE")], **how), {"cells": [cell()]}),
        (lambda c, how: c.get_rows([ROW], **how), {"rows": [{"cells": {"BASE": cell()}}]}),
    ],
)
def test_a_read_request_names_a_minion_only_when_the_caller_does(
    read: Callable[[Client, dict[str, str]], object], answer: object
) -> None:
    with (
        answering(by_route(answer)) as (url, server),
        Client(url, "trips", timeout_s=10) as client,
    ):
        assert read(client, {"read_from": "minion"})
        assert read(client, {})
        assert read(client, {"read_from": "master"})
        asked = [request for requests in server.requests for request in requests]
    assert [b"minion" in request for request in asked] == [True, False, False]
    assert [b"read_from" in request for request in asked] == [True, False, False]
    assert all(str(ROW).encode() in request for request in asked)


def test_pieces_of_logs_may_arrive_in_any_order_and_each_goes_to_its_shard() -> None:
    answer = {"shards": [piece(2), piece(1)]}
    with answering(by_route(answer)) as (url, _), Client(url, "trips", timeout_s=10) as client:
        found = client.get_cells_for_shards({1: 4, 2: 4}, 10)
    assert {shard: each.cells[0].shard for shard, each in found.items()} == {1: 1, 2: 2}


@pytest.mark.parametrize(
    "wrong",
    [
        {**HEADS, "datastore": "rides"},
        {**HEADS, "shards": 5},
        {**HEADS, "shards": 3, "heads": [HEAD] * 3},
    ],
)
def test_heads_of_another_datastore_are_an_error(wrong: dict[str, object]) -> None:
    answers: list[object] = [HEADS, wrong]
    with (
        answering(lambda _: answers.pop(0)) as (url, _),
        Client(url, "trips", timeout_s=10) as client,
    ):
        assert client.shards == SHARDS
        with pytest.raises(WrongAnswer):
            client.heads()


@pytest.mark.parametrize(
    "wrong",
    [
        {"results": []},
        {"results": [PUT]},
        {"results": [PUT, PUT, PUT]},
        {"results": [ELSEWHERE, PUT]},
    ],
)
def test_a_batch_that_is_answered_with_something_else_is_unknown(wrong: object) -> None:
    cells: list[tuple[UUID, str, int, dict[str, Any]]] = [(ROW, "BASE", n, {}) for n in (1, 2)]
    with answering(by_route(wrong)) as (url, _), Client(url, "trips", timeout_s=10) as client:
        assert client.shards == SHARDS
        with pytest.raises(OutcomeUnknown):
            client.put_cells(cells)
    with (
        answering(by_route({"results": [PUT, PUT]})) as (url, _),
        Client(url, "trips", timeout_s=10) as client,
    ):
        assert [each.outcome for each in client.put_cells(cells)] == [Outcome.STORED] * 2


def test_a_put_or_an_erasure_that_is_answered_with_something_else_is_unknown() -> None:
    with answering(by_route(ELSEWHERE)) as (url, _), Client(url, "trips", timeout_s=10) as client:
        assert client.shards == SHARDS
        with pytest.raises(OutcomeUnknown):
            client.put_cell(ROW, "BASE", 1, {})
    erased = {"row_key": str(OTHER), "shard": 1, "added_id": 9, "cells": 1, "kept": []}
    with (
        answering(by_route(erased)) as (url, _),
        Client(url, "trips", timeout_s=10) as client,
        pytest.raises(OutcomeUnknown),
    ):
        client.erase_row(ROW)


class Once:
    """The answer to another request first, then the right ones."""

    def __init__(self, times: int = 1) -> None:
        self.left = times

    def __call__(self, request: bytes) -> bytes:
        self.left -= 1
        return b"cellfeed-request: 0123456789abcdef\r\n" if self.left >= 0 else echoed(request)


def test_an_answer_to_another_request_is_not_taken_and_its_connection_not_used_again() -> None:
    with (
        answering(by_route(PUT), Once()) as (url, server),
        Client(url, "trips", timeout_s=10) as client,
    ):
        assert client.put_cell(ROW, "BASE", 1, {}).outcome is Outcome.STORED
        assert client.put_cell(ROW, "BASE", 2, {}).outcome is Outcome.STORED
    assert [len(requests) for requests in server.requests] == [1, 2]


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda c: c.put_cell(ROW, "BASE", 1, {}), OutcomeUnknown),
        (lambda c: c.get_cell(ROW, "BASE", 1), WrongAnswer),
        (lambda c: c.heads(), WrongAnswer),
    ],
)
def test_answers_to_other_requests_alone_leave_a_put_unknown_and_a_read_without_an_answer(
    call: Callable[[Client], object], kind: type[CellfeedError]
) -> None:
    with (
        answering(by_route(cell()), Once(1_000_000)) as (url, _),
        Client(url, "trips", timeout_s=1) as client,
        pytest.raises(kind),
    ):
        call(client)


def test_a_second_answer_on_the_connection_is_nobodys() -> None:
    stored = json.dumps(PUT).encode()
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(stored), stored)

    def talk(peer: socket.socket) -> None:
        _request(peer)
        peer.sendall(answer + answer)

    from tests.unit.store.http.test_http_client import served

    with (
        served(talk) as url,
        Client(url, "trips", timeout_s=1) as client,
        pytest.raises(OutcomeUnknown),
    ):
        client.put_cell(ROW, "BASE", 1, {})


def in_child(work: Callable[[], None]) -> None:
    """Runs ``work`` in a forked child, which ends as its parent's tests do not: at once."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"the child: {error!r}\n".encode())
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forked_child_makes_connections_of_its_own_and_leaves_the_parents_alone() -> None:
    with (
        answering(by_route(PUT), echoed) as (url, server),
        Client(url, "trips", timeout_s=10) as client,
    ):
        assert client.put_cell(ROW, "BASE", 1, {}).outcome is Outcome.STORED

        def put() -> None:
            assert client.put_cell(ROW, "BASE", 2, {}).outcome is Outcome.STORED
            client.close()

        in_child(put)
        in_child(put)
        assert client.put_cell(ROW, "BASE", 3, {}).outcome is Outcome.STORED
    assert [len(requests) for requests in server.requests] == [2, 1, 1]


def test_a_child_that_is_forked_while_others_call_never_waits_for_their_locks() -> None:
    with answering(by_route(PUT), echoed) as (url, _), Client(url, "trips", timeout_s=10) as client:
        stop = threading.Event()

        def call() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                client.put_cell(ROW, "BASE", number, {})

        def put_three() -> None:
            for number in range(3):
                client.put_cell(ROW, "BASE", number, {})

        callers = [threading.Thread(target=call) for _ in range(4)]
        for caller in callers:
            caller.start()
        try:
            for _ in range(20):
                in_child(put_three)
        finally:
            stop.set()
            for caller in callers:
                caller.join()


def test_a_closed_client_refuses_in_a_child_too() -> None:
    client = Client("http://127.0.0.1:1", "trips")
    client.close()

    def call() -> None:
        with pytest.raises(StorageUnavailable, match="closed"):
            client.get_row(ROW)

    in_child(call)
