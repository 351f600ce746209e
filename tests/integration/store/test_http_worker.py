"""The worker seen from the wire, by clients that are not ours."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgpack
import pytest

from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import ProtectData, StorageUnavailable
from cellfeed.store.failpoints import FailpointReached
from cellfeed.store.http.server.connections import Connection
from cellfeed.store.http.server.put_stream import LINE_BYTES_MAX
from cellfeed.store.http.server.worker import run_worker
from cellfeed.store.limits import HTTP_BODY_BYTES_MAX
from tests.support.http_calls import call
from tests.support.worker_thread import worker_thread

ROW = UUID(int=0xFEED)

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path_factory.mktemp("store")) as opened:
        yield opened


@pytest.fixture(scope="module")
def port(store: Datastore) -> Iterator[int]:
    with worker_thread(store) as url:
        yield int(url.rpartition(":")[2])


def cell_json(**changes: Any) -> bytes:
    return json.dumps(
        {"row_key": str(uuid4()), "column_name": "BASE", "ref_key": 1, "body": {"n": 1}, **changes}
    ).encode()


def error_of(answer: tuple[int, str, bytes]) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(answer[2])
    assert set(error) == {"error", "message", "retriable", "definite"}
    return error


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "code"),
    [
        ("POST", "/v1/trips/cell", b"{", {}, 400, "invalid_request"),
        (
            "POST",
            "/v1/trips/cell",
            b"{}",
            {"content_type": "text/plain"},
            415,
            "unsupported_media_type",
        ),
        ("POST", "/v1/trips/cells", b'{"cells":{}}', {}, 400, "invalid_request"),
        ("POST", "/v1/trips/cells/get", b"{}", {}, 400, "invalid_request"),
        (
            "POST",
            "/v1/trips/rows",
            b"x",
            {"content_type": "application/msgpack"},
            400,
            "invalid_request",
        ),
        ("POST", "/v1/other/cell", cell_json(), {}, 404, "unknown_datastore"),
        ("POST", "/v1/other/cells", b'{"cells":[]}', {}, 404, "unknown_datastore"),
        ("GET", "/v1/other/shards", None, {}, 404, "unknown_datastore"),
        ("GET", "/v1/trips/shards/16/cells", None, {}, 404, "unknown_shard"),
        ("GET", "/v1/trips/shards/1/cells?location=yesterday", None, {}, 400, "invalid_location"),
        (
            "GET",
            "/v1/trips/shards/1/cells?location=2019-03-23T20:21:09",
            None,
            {},
            400,
            "invalid_location",
        ),
        ("GET", "/v1/trips/shards/1/cells?limit=0", None, {}, 400, "invalid_request"),
        ("GET", "/v1/trips/shards/1/cells?limit=1&limit=2", None, {}, 400, "invalid_request"),
        ("GET", "/v1/trips/shards/1/cells?limit=1.0", None, {}, 400, "invalid_request"),
        (
            "GET",
            "/v1/trips/cell?row_key=x&column_name=B&ref_key=1",
            None,
            {},
            400,
            "invalid_row_key",
        ),
        (
            "GET",
            f"/v1/trips/cell?row_key={ROW}&column_name=%FF&ref_key=1",
            None,
            {},
            400,
            "invalid_request",
        ),
        (
            "GET",
            f"/v1/trips/cell?row_key={ROW}&column_name=B&ref_key=9223372036854775808",
            None,
            {},
            400,
            "invalid_ref_key",
        ),
        ("GET", f"/v1/trips/cell?row_key={ROW}&column_name=B", None, {}, 400, "invalid_request"),
        (
            "GET",
            f"/v1/trips/cell?row_key={ROW}&column_name=B&ref_key=1",
            None,
            {},
            404,
            "not_found",
        ),
        ("GET", "/nowhere", None, {}, 404, "unknown_route"),
        ("DELETE", "/v1/trips/cell", None, {}, 405, "method_not_allowed"),
        ("GET", "/v1/trips/cells", None, {}, 405, "method_not_allowed"),
        ("GET", "/v1/trips/shards", None, {"host": "evil.example"}, 400, "invalid_request"),
        (
            "GET",
            "/v1/trips/shards",
            None,
            {"host": "127.0.0.1.evil.example:80"},
            400,
            "invalid_request",
        ),
    ],
)
def test_bad_requests_are_refused_with_the_reason(
    port: int,
    method: str,
    path: str,
    body: bytes | None,
    headers: dict[str, str],
    status: int,
    code: str,
) -> None:
    answer = call(port, method, path, body, **headers)
    assert (answer[0], error_of(answer)["error"]) == (status, code)
    assert error_of(answer)["definite"]


def test_json_and_messagepack_answers_have_the_same_content(port: int) -> None:
    put = json.loads(cell_json(body={"a": [1.5, None, "ü"]}))
    packed = call(
        port,
        "POST",
        "/v1/trips/cell",
        msgpack.packb(put),
        content_type="application/msgpack",
        accept="application/msgpack",
    )
    assert (packed[0], packed[1], msgpack.unpackb(packed[2])["outcome"]) == (
        200,
        "application/msgpack",
        "stored",
    )
    plain = call(port, "POST", "/v1/trips/cell", json.dumps(put).encode())
    assert (plain[0], json.loads(plain[2])["outcome"]) == (200, "exists")
    path = f"/v1/trips/row?row_key={put['row_key']}"
    assert msgpack.unpackb(call(port, "GET", path, accept="application/msgpack")[2]) == json.loads(
        call(port, "GET", path)[2]
    )
    conflict = call(
        port,
        "POST",
        "/v1/trips/cell",
        json.dumps({**put, "body": {}}).encode(),
        accept="application/msgpack",
    )
    assert (conflict[0], msgpack.unpackb(conflict[2])["error"]) == (409, "conflict")


def test_a_stream_has_a_result_per_line_in_order(port: int, store: Datastore) -> None:
    good = [cell_json(body={"n": n}) for n in range(1500)]
    lines = [*good[:700], b"not json", *good[700:], good[0], cell_json(ref_key="x")]
    status, media_type, content = call(
        port,
        "POST",
        "/v1/trips/cells",
        b"\n".join(lines) + b"\n\n",
        content_type="application/x-ndjson",
    )
    results = [json.loads(line) for line in content.splitlines()]
    assert (status, media_type, len(results)) == (200, "application/x-ndjson", len(lines))
    assert [result["outcome"] for result in results] == ["stored"] * 700 + ["failed"] + [
        "stored"
    ] * 800 + ["exists", "failed"]
    keys = [json.loads(line)["row_key"] for line in good]
    found = store.get_cells_latest([(key, "BASE") for key in keys])
    stored = [result for result in results if result["outcome"] == "stored"]
    assert [cell and (cell.shard, cell.added_id) for cell in found] == [
        (result["shard"], result["added_id"]) for result in stored
    ]


def test_a_stream_is_answered_while_it_is_still_coming(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
        peer.sendall(
            b"POST /v1/trips/cells HTTP/1.1\r\nhost: localhost\r\ncontent-type:"
            b" application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        reading = peer.makefile("rb")
        for n in range(3):
            line = cell_json(body={"n": n}) + b"\n"
            peer.sendall(b"%x\r\n%b\r\n" % (len(line), line))
            while b'"outcome":"stored"' not in (got := reading.readline()):
                assert got, "the answer ended"
        peer.sendall(b"0\r\n\r\n")
        while reading.readline() != b"0\r\n":
            pass
        reading.close()


def test_a_line_too_long_fails_without_failing_others(port: int) -> None:
    content = cell_json() + b"\n" + b"x" * (LINE_BYTES_MAX + 1) + b"\n" + cell_json()
    _, _, answer = call(
        port, "POST", "/v1/trips/cells", content, content_type="application/x-ndjson"
    )
    results = [json.loads(line) for line in answer.splitlines()]
    assert [result["outcome"] for result in results] == ["stored", "failed", "stored"]
    assert results[1]["error"]["error"] == "body_too_large"


def test_a_body_too_large_is_refused_before_it_is_sent(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
        peer.sendall(
            b"POST /v1/trips/cell HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % (HTTP_BODY_BYTES_MAX + 1)
        )
        assert peer.recv(1 << 16).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x01\x02\xff" * 50,
        b"GET\r\n\r\n",
        b"POST /v1/trips/cell HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        (
            b"POST /v1/trips/cell HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding:"
            b" chunked\r\n\r\nzz\r\n"
        ),
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
    ],
)
def test_garbage_costs_one_connection(port: int, garbage: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
        peer.sendall(garbage)
        peer.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while piece := peer.recv(1 << 16):
                answer += piece
        except ConnectionError:
            pass
        assert not answer or answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 404", b"HTTP/1.1 414"))
    assert call(port, "GET", "/health")[0] == 200


HALF_HEAD = b"POST /v1/trips/ce"
HALF_BODY = (
    b"POST /v1/trips/cell HTTP/1.1\r\nhost: localhost\r\ncontent-type:"
    b" application/json\r\ncontent-length: 50\r\n\r\n{"
)


@pytest.mark.parametrize("half", [HALF_HEAD, HALF_BODY], ids=["head", "body"])
def test_a_peer_that_stops_half_way_is_cut_off_and_others_are_served(
    port: int, half: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "silent_s", 0.5)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
        peer.sendall(half)
        assert call(port, "POST", "/v1/trips/cell", cell_json())[0] == 200
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(1) == b""


def test_a_peer_that_sends_and_never_reads_is_cut_off_with_bounded_memory(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "silent_s", 1.0)
    line = (b"x" * 40 + b"\n") * 2_000
    sent = 0
    with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.sendall(
            b"POST /v1/trips/cells HTTP/1.1\r\nhost: localhost\r\ncontent-type:"
            b" application/x-ndjson\r\ncontent-length: 1000000000\r\n\r\n"
        )
        with contextlib.suppress(ConnectionError):
            while sent < 80_000_000:
                peer.sendall(line)
                sent += len(line)
    assert 0 < sent < 80_000_000, "the worker read on without end"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/trips/shards", 200),
        ("GET", f"/v1/trips/row?row_key={UUID(int=1)}", 200),
        ("GET", "/v1/trips/row?row_key=1", 400),
        ("GET", "/nowhere", 404),
        ("POST", "/v1/trips/cell", 415),
        ("GET", "/health/live", 200),
        ("GET", "/metrics", 200),
    ],
)
def test_every_answer_repeats_the_number_of_its_request(
    port: int, method: str, path: str, status: int
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    for number, repeated in (
        ("abc123", "abc123"),
        ("x" * 64, "x" * 64),
        ("x" * 65, None),
        (None, None),
    ):
        connection.request(
            method, path, headers={} if number is None else {"cellfeed-request": number}
        )
        answer = connection.getresponse()
        answer.read()
        assert (answer.status, answer.getheader("cellfeed-request")) == (status, repeated)
    connection.close()


def test_health_shows_whether_the_storage_answers(tmp_path_factory: pytest.TempPathFactory) -> None:
    with (
        Datastore.open_embedded(tmp_path_factory.mktemp("sick")) as sick,
        worker_thread(sick) as url,
    ):
        port = int(url.rpartition(":")[2])
        assert call(port, "GET", "/health/ready")[0] == 200
        sick.close()
        status, _, content = call(port, "GET", "/health/ready")
        assert (status, json.loads(content)["ready"]) == (503, False)
        assert call(port, "GET", "/health/live")[0] == 200
        answer = call(port, "POST", "/v1/trips/cell", cell_json())
        assert (answer[0], error_of(answer)["error"]) == (503, "storage_unavailable")


def test_a_worker_whose_writer_has_ended_is_not_ready_and_reports_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Datastore.open_embedded(tmp_path) as sick, worker_thread(sick) as url:
        port = int(url.rpartition(":")[2])
        assert call(port, "POST", "/v1/trips/cell", cell_json())[0] == 200
        assert call(port, "GET", "/health/ready")[0] == 200

        def fail(*_: object) -> None:
            raise FailpointReached("the thread's end")

        monkeypatch.setattr("cellfeed.store.commit.group_commit.answer_all", fail)
        answer = call(port, "POST", "/v1/trips/cell", cell_json())
        assert (answer[0], error_of(answer)["error"]) == (504, "outcome_unknown")
        deadline_s = time.monotonic() + 10
        while (found := call(port, "GET", "/health/ready"))[
            0
        ] == 200:  # the caller may hear of it first
            assert time.monotonic() < deadline_s
        status, _, content = found
        assert (status, json.loads(content)["ready"]) == (503, False)
        assert "writer-trips is dead" in json.loads(content)["reason"]
        answer = call(port, "POST", "/v1/trips/cell", cell_json())
        assert (answer[0], error_of(answer)["definite"]) == (503, True)
        assert call(port, "GET", "/health/live")[0] == 200


def test_metrics_count_cells_by_outcome(port: int) -> None:
    call(port, "POST", "/v1/trips/cell", cell_json())
    _, _, content = call(port, "GET", "/metrics")
    stored = re.search(
        rb'^cellfeed_http_cells_put_total\{outcome="stored"\} (\S+)$', content, re.MULTILINE
    )
    assert stored
    assert float(stored[1]) >= 1


def test_the_document_describes_every_route_and_its_page_needs_no_network(port: int) -> None:
    document = json.loads(call(port, "GET", "/schema/openapi.json")[2])
    assert document["openapi"].startswith("3.1")
    assert {path for path in document["paths"] if path.startswith("/v1/")} == {
        f"/v1/{{datastore}}/{route}"
        for route in (
            "follow",
            "wakeups",
            "cell",
            "cells",
            "latest",
            "row",
            "rows",
            "rows/{row_key}",
            "cells/get",
            "cells/latest",
            "shards",
            "shards/{shard}/cells",
            "shards/cells",
            "indexes/{index}/query",
            "wait",
        )
    }
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert references <= set(document["components"]["schemas"])
    status, media_type, page = call(port, "GET", "/schema")
    assert (status, media_type.partition(";")[0]) == (200, "text/html")
    assert b"<script" not in page
    assert not re.search(rb"(src|href)\s*=\s*[\"']?(https?:)?//", page)
    assert all(path.encode() in page for path in document["paths"])


def test_many_callers_at_once_are_each_answered(port: int) -> None:
    statuses: list[int] = []

    def put() -> None:
        statuses.extend([call(port, "POST", "/v1/trips/cell", cell_json())[0] for _ in range(5)])

    threads = [threading.Thread(target=put) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 160


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_a_host_that_is_not_loopback_is_refused(store: Datastore, host: str) -> None:
    with pytest.raises(ProtectData, match="loopback"):
        run_worker(store, host)


def test_a_port_in_use_is_refused_with_its_name(store: Datastore, port: int) -> None:
    with pytest.raises(StorageUnavailable, match=str(port)):
        run_worker(store, port=port)


def test_a_stream_ends_when_the_worker_closes(tmp_path_factory: pytest.TempPathFactory) -> None:
    with (
        Datastore.open_embedded(tmp_path_factory.mktemp("closing")) as closing,
        worker_thread(closing) as url,
    ):
        peer = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20)
        peer.sendall(
            b"POST /v1/trips/cells HTTP/1.1\r\nhost: localhost\r\ncontent-type:"
            b" application/x-ndjson\r\ncontent-length: 100000000\r\n\r\n"
        )
        line = cell_json() + b"\n"
        peer.sendall(line)
        assert peer.recv(1 << 16).startswith(b"HTTP/1.1 200")
    with (
        peer,
        contextlib.suppress(ConnectionError),
    ):  # the worker has ended, in order, although the stream had not
        while peer.recv(1 << 16):
            pass
