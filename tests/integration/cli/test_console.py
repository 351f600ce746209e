"""The console of a running instance, by HTTP: pages, forms, and the doors that stay closed."""

from __future__ import annotations

import http.client
import re
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode
from uuid import UUID

import pytest

from cellfeed.console.app import SECURITY_HEADERS, STREAMS_MAX
from cellfeed.run_dir import RunDir
from cellfeed.store.http.client import Client
from tests.support.cli_instance import cellfeed, running
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

KEY = UUID(int=1)
MARKUP = "<script>alert(1)</script>"
PROGRAM = """
from cellfeed.bridge.triggers.program import RetryPolicy, trigger

@trigger(column="BASE", retry=RetryPolicy(2, 0.01, 0.01), pause_rows=None)
def bill(row_key, *, cell):
    if cell.body.get("poison"):
        raise ValueError("<b>poison</b>")
"""
CONFIG = """
datastore: {shards: 4}
workers: [{port: 0}]
gateways: [{port: 0, registry_port: 0, group_initial_delay_s: 0}]
triggers: [{app: PATH, name: billing, lease_s: 1}]
consoles: [{port: 0}]
"""
PAGES = ["/", "/groups", "/groups/billing", "/log", "/log?shard=0", "/row", "/parked", "/cluster"]


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    text: str


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("console")
    program = directory / "bill.py"
    program.write_text(PROGRAM)
    with running(directory, CONFIG.replace("PATH", str(program))) as made:
        yield made


@pytest.fixture
def port(run_dir: Path) -> int:
    return RunDir(run_dir).process("console").ports["console"]


def asked(
    port: int,
    path: str,
    form: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        given = dict(headers or {})
        body = None
        if form is not None:
            body = urlencode(form)
            given["Content-Type"] = "application/x-www-form-urlencoded"
        connection.request("GET" if form is None else "POST", path, body, given)
        answer = connection.getresponse()
        text = answer.read().decode()
        return Answer(
            answer.status, {name.lower(): value for name, value in answer.getheaders()}, text
        )
    finally:
        connection.close()


def sent(port: int, path: str, form: Mapping[str, str]) -> Answer:
    """A form as a browser sends it: with the cookie and the token of a page."""
    shown = asked(port, "/groups/billing")
    cookie = shown.headers["set-cookie"].partition(";")[0]
    [token] = set(re.findall(r'name="_csrf_token" value="([^"]+)"', shown.text))
    return asked(port, path, {**form, "_csrf_token": token}, {"Cookie": cookie})


def put(run_dir: Path, body: dict[str, object], row_key: UUID = KEY, column: str = "BASE") -> None:
    worker = RunDir(run_dir).process("worker").ports["http"]
    with Client(f"http://127.0.0.1:{worker}", "trips") as client:
        client.put_cell(row_key, column, 1, body)


def test_every_page_answers_with_headers_that_let_no_other_script_run(port: int) -> None:
    for path in PAGES:
        answer = asked(port, path)
        assert answer.status == 200, (path, answer.text)
        for name, value in SECURITY_HEADERS.items():
            assert answer.headers[name.lower()] == value
        assert answer.headers["cache-control"] == "no-store"
        assert "<script>" not in answer.text
        assert not re.search(r"""\s(on\w+|style)=["']""", answer.text)
    assert "cellfeed_stuck_known 1.0" in asked(port, "/metrics").text
    for name in ("console.css", "htmx.min.js", "htmx-sse.js"):
        assert asked(port, f"/static/{name}").status == 200


def test_a_row_shows_its_cells_and_the_readers_that_passed_them(run_dir: Path, port: int) -> None:
    put(run_dir, {"note": MARKUP}, column="NOTE")
    row = f"/row?key={KEY}"
    wait_until(
        lambda: (
            re.search(r'trigger billing: <span class="good">passed', asked(port, row).text)
            is not None
        ),
        "the trigger passes the cell",
    )
    text = asked(port, row).text
    assert MARKUP not in text
    assert "&lt;script&gt;" in text
    log = asked(port, "/log?column=NOTE").text
    assert str(KEY) in log
    assert re.search(r"<td>20\d\d-\d\d-\d\dT", log)
    assert MARKUP not in log
    assert str(KEY) not in asked(port, "/log?column=OTHER").text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/row?key=x", 400),
        ("/log?shard=99", 404),
        ("/log?shard=-1", 400),
        ("/log?shard=0&from=1e3", 400),
        ("/groups/nobody", 404),
        ("/nothing", 404),
        ("/static/../app.py", 404),
        ("/static/%2e%2e/app.py", 404),
    ],
)
def test_a_wrong_address_is_answered_with_its_reason(port: int, path: str, status: int) -> None:
    answer = asked(port, path)
    assert answer.status == status
    assert "Traceback" not in answer.text


def test_a_parked_cell_is_tried_again_or_skipped_with_a_reason(run_dir: Path, port: int) -> None:
    key = UUID(int=9)
    put(run_dir, {"poison": True}, key)
    wait_until(lambda: str(key) in asked(port, "/parked").text, "the cell is parked")
    text = asked(port, "/parked").text
    assert "<b>poison" not in text
    [cell] = set(re.findall(r'name="cell" value="([^"]+)"', text))
    form = {"group": "billing", "cell": cell}
    assert sent(port, "/parked/retry", form).status == 303
    nameless = sent(port, "/parked/skip", {**form, "reason": " "})
    assert (nameless.status, "say why" in nameless.text) == (400, True)
    assert str(key) in asked(port, "/parked").text
    assert sent(port, "/parked/skip", {**form, "reason": "it is bad"}).status == 303
    assert "No cell is parked" in asked(port, "/parked").text
    skipped = cellfeed("parked", "list", "--skipped", "--json", "--run-dir", str(run_dir)).stdout
    assert "it is bad" in skipped


def test_a_trigger_is_paused_and_resumed_with_a_reason(run_dir: Path, port: int) -> None:
    form = {"group": "billing", "reason": "a look"}
    assert sent(port, "/groups/pause", form).status == 303
    wait_until(lambda: "trigger billing" in asked(port, "/").text, "the pause is shown")
    assert "a look" in asked(port, "/").text
    assert sent(port, "/groups/resume", {**form, "reason": "seen"}).status == 303
    wait_until(lambda: "Nothing stands still" in asked(port, "/").text, "nothing stands still")
    shown = asked(port, "/groups/billing").text
    assert "(console)" in shown
    assert "seen" in shown
    assert sent(port, "/groups/pause", {"group": "nobody", "reason": "x"}).status == 400
    assert sent(port, "/groups/pause", {"group": "billing", "reason": ""}).status == 400
    del run_dir


@pytest.mark.parametrize("path", ["/parked/retry", "/parked/skip", "/groups/pause"])
def test_a_form_without_the_token_of_a_page_changes_nothing(port: int, path: str) -> None:
    form = {"group": "billing", "cell": "0/0", "reason": "forged"}
    assert asked(port, path, form).status == 403
    cookie = asked(port, "/parked").headers["set-cookie"].partition(";")[0]
    assert asked(port, path, form, {"Cookie": cookie}).status == 403
    assert asked(port, path, {**form, "_csrf_token": "0" * 128}, {"Cookie": cookie}).status == 403
    assert asked(port, path).status == 405  # a link changes nothing either
    assert "forged" not in asked(port, "/groups/billing").text


def test_a_name_that_points_here_from_elsewhere_is_refused(port: int) -> None:
    answer = asked(port, "/log", headers={"Host": f"evil.example:{port}"})
    assert (answer.status, "loopback" in answer.text) == (400, True)
    assert asked(port, "/log", headers={"Host": f"localhost:{port}"}).status == 200


def test_a_form_that_is_too_large_is_refused(port: int) -> None:
    assert sent(port, "/groups/pause", {"group": "billing", "reason": "x" * 20_000}).status == 413


def test_open_pages_hear_of_looks_and_are_bounded(port: int) -> None:
    streams = [socket.create_connection(("127.0.0.1", port)) for _ in range(STREAMS_MAX)]
    try:
        for each in streams:
            each.settimeout(30)
            each.sendall(b"GET /changes HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for each in streams:
            heard = b""
            while b"event: look" not in heard:
                heard += each.recv(4096)
        assert asked(port, "/changes").status == 429
        assert asked(port, "/").status == 200
    finally:
        for each in streams:
            each.close()
    wait_until(lambda: _stream_opens(port), "closed pages make room")


def _stream_opens(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port)) as stream:
        stream.settimeout(10)
        stream.sendall(b"GET /changes HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return b"200 OK" in stream.recv(4096)


def test_an_open_page_keeps_no_console_from_ending(tmp_path: Path) -> None:
    with running(
        tmp_path,
        "datastore: {shards: 1}\nworkers: [{port: 0}]\ngateways: []\nconsoles: [{port: 0}]\n",
    ) as run_dir:
        directory = RunDir(run_dir)
        port = directory.process("console").ports["console"]
        with socket.create_connection(("127.0.0.1", port)) as stream:
            stream.sendall(b"GET /changes HTTP/1.1\r\nHost: localhost\r\n\r\n")
            stream.settimeout(30)
            assert b"200 OK" in stream.recv(4096)
            begun_s = time.monotonic()
            assert directory.stop_process("console"), time.monotonic() - begun_s


def test_a_console_beyond_loopback_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("consoles: [{host: 0.0.0.0}]\n")
    said = cellfeed("config", "check", str(config))
    assert (said.returncode, "not loopback" in said.stderr) == (3, True)
