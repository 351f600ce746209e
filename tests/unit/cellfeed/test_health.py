"""``/livez`` and ``/readyz`` of a process, and its notifications of systemd."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellfeed.processes import health_listener
from cellfeed.processes.health import ProcessHealth
from cellfeed.processes.health_listener import HealthListener, listen
from cellfeed.processes.metrics import METRICS_TYPE
from cellfeed.processes.sd_notify import notify, status_line, watchdog_s
from cellfeed.store import progress
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.progress import ProgressLimits, Watch, set_limits


@pytest.fixture(autouse=True)
def _no_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_registry", progress._Registry())
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)


@pytest.fixture
def health() -> ProcessHealth:
    return ProcessHealth("worker")


@pytest.fixture
def listener(health: ProcessHealth) -> Iterator[HealthListener]:
    listener = HealthListener(health, "127.0.0.1", 0)
    yield listener
    listener.close()


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket of a service manager."""
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        receiver.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        yield receiver


def received(manager: socket.socket) -> list[str]:
    found: list[str] = []
    while True:
        try:
            found += manager.recv(4096).decode().split("\n")
        except BlockingIOError:
            return found


def asked(listener: HealthListener, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", listener.port, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    return answer.status, found


def test_a_process_is_ready_from_when_it_serves_until_it_stops(
    health: ProcessHealth, listener: HealthListener
) -> None:
    def verdict() -> tuple[int, list[str]]:
        status, found = asked(listener, "/readyz")
        return status, [each["code"] for each in found["reasons"]]

    assert verdict() == (503, ["starting"])
    assert asked(listener, "/livez") == (200, {"name": "worker", "ok": True, "reasons": []})
    health.serves()
    assert verdict() == (200, [])
    health.stopped_work(["partition 5 is stopped: no cell"])
    assert verdict() == (503, ["work-stopped"])
    health.stopped_work([])
    assert verdict() == (200, [])
    health.stops()
    assert verdict() == (503, ["stopping"])
    assert asked(listener, "/livez")[0] == 200
    assert asked(listener, "/other")[0] == 404


def test_a_part_that_stands_is_named_with_its_limit(
    health: ProcessHealth, listener: HealthListener
) -> None:
    health.serves()
    set_limits(ProgressLimits(coordination_s=1e-9))
    watch = Watch("the coordination", "coordination")
    watch.waits("connection refused")
    status, found = asked(listener, "/readyz?verbose")
    [reason] = found["reasons"]
    assert (status, reason["code"], reason["part"]) == (
        503,
        "coordination-away",
        "the coordination",
    )
    assert reason["message"].endswith("connection refused")
    assert asked(listener, "/livez")[0] == 200


def test_an_event_loop_that_stands_is_not_alive(
    health: ProcessHealth, listener: HealthListener
) -> None:
    health.serves()
    set_limits(ProgressLimits(event_loop_s=1e-9))
    watch = Watch("of the gateway", "event-loop")
    assert [asked(listener, path)[0] for path in ("/livez", "/readyz")] == [503, 503]
    watch.close()


def test_a_peer_of_another_host_gets_the_verdict_alone(
    listener: HealthListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked(listener, "/readyz")[1]["reasons"] != []
    monkeypatch.setattr(health_listener, "is_of_this_host", lambda _: False)
    assert asked(listener, "/readyz") == (503, {"name": "worker", "ok": False, "reasons": []})


@pytest.mark.parametrize(
    ("peer", "is_of_this_host"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("fe80::1%eth0", False),
    ],
)
def test_peers_of_this_host_have_loopback_addresses(peer: str, is_of_this_host: bool) -> None:
    assert health_listener.is_of_this_host(peer) is is_of_this_host


def test_silent_peers_take_no_more_than_their_number_of_threads(
    health: ProcessHealth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_listener, "CONNECTIONS_MAX", 2)
    listener = HealthListener(health, "127.0.0.1", 0)
    silent = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(2)]
    refused = socket.create_connection(("127.0.0.1", listener.port), timeout=30)
    assert refused.recv(1) == b""
    for each in (*silent, refused):
        each.close()
    listener.close()


def test_a_port_that_is_taken_is_refused_in_words(
    health: ProcessHealth, listener: HealthListener
) -> None:
    with pytest.raises(StorageUnavailable, match=f"cannot listen on 127.0.0.1:{listener.port}"):
        HealthListener(health, "127.0.0.1", listener.port)


def test_a_kept_port_that_another_program_has_is_given_up_and_a_configured_one_is_not(
    health: ProcessHealth, listener: HealthListener
) -> None:
    other = listen(health, "127.0.0.1", 0, kept=listener.port)
    assert other.port != listener.port
    kept = other.port
    other.close()
    again = listen(health, "127.0.0.1", 0, kept=kept)
    assert again.port == kept
    again.close()
    with pytest.raises(StorageUnavailable):
        listen(health, "127.0.0.1", listener.port, kept=kept)


def test_systemd_hears_when_a_process_serves_and_when_it_stops(
    manager: socket.socket, health: ProcessHealth
) -> None:
    assert received(manager) == []
    health.serves()
    assert received(manager) == ["READY=1", "STATUS=serves"]
    health.stops()
    assert received(manager) == ["STOPPING=1", "STATUS=drains"]


def test_the_watchdog_is_called_while_the_process_is_alive_and_not_after(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    health = ProcessHealth("gateway")
    health.serves()
    received(manager)
    health.look()
    assert received(manager) == ["WATCHDOG=1"]
    set_limits(ProgressLimits(loop_s=1e-9))
    watch = Watch("gateway-heads", "loop")
    health.look()
    heard = received(manager)
    assert heard[0] == "WATCHDOG=1"  # another server may be the cause: a restart mends nothing
    assert heard[1].startswith("STATUS=not ready: the loop gateway-heads has done nothing")
    set_limits(ProgressLimits(event_loop_s=1e-9))
    turns = Watch("of the gateway", "event-loop")
    health.look()
    assert "WATCHDOG=1" not in received(manager)
    turns.close()
    watch.close()
    health.look()
    assert received(manager) == ["WATCHDOG=1", "STATUS=serves"]


def test_a_changed_verdict_is_logged_once(
    health: ProcessHealth, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "cellfeed.health")
    health.serves()
    health.stopped_work(["partition 5 is stopped"])
    for _ in range(3):
        health.look()
    health.stopped_work([])
    health.look()
    assert [each.getMessage() for each in caplog.records] == [
        "not ready: partition 5 is stopped",
        "ready again",
    ]


def test_without_a_service_manager_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert notify("READY=1") is False
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/notify")
    assert notify("READY=1") is False


def test_an_abstract_socket_is_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = f"cellfeed-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        assert notify("READY=1", status_line("a\nb" + "c" * 1_000))
        assert receiver.recv(4096).decode() == "READY=1\nSTATUS=a b" + "c" * 397


@pytest.mark.parametrize(
    ("variables", "every_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "1500000"}, 1.5),
        ({"WATCHDOG_USEC": "1500000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
    ],
)
def test_the_watchdog_of_another_process_is_not_called(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], every_s: float | None
) -> None:
    for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert watchdog_s() == every_s


def test_every_process_has_metrics_of_itself_beside_its_probes(
    health: ProcessHealth, listener: HealthListener
) -> None:
    def figures() -> dict[str, float]:
        connection = http.client.HTTPConnection("127.0.0.1", listener.port, timeout=20)
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("Content-Type")) == (200, METRICS_TYPE)
        lines = answer.read().decode().splitlines()
        connection.close()
        return {
            name: float(value)
            for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
        }

    assert figures()['cellfeed_process_unready_reasons{code="starting"}'] == 1
    health.serves()
    found = figures()
    assert found["cellfeed_process_ready"] == 1
    assert found["process_resident_memory_bytes"] > 1e6
    assert not any("unready_reasons{" in name for name in found)
    health.stopped_work(["a secret path", "another"])
    found = figures()
    assert found["cellfeed_process_ready"] == 0
    assert found['cellfeed_process_unready_reasons{code="work-stopped"}'] == 2
