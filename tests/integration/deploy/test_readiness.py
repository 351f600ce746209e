"""``/readyz`` of every kind of process: real causes, with the reason, and the way back."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.triggers.worker import run_trigger_worker
from cellfeed.store import progress
from cellfeed.store.datastore import Datastore
from cellfeed.store.http.client import Client
from cellfeed.store.http.server.bodies import BODIES
from cellfeed.store.progress import ProgressLimits, set_limits, unalive, unready
from tests.support import local_zookeeper
from tests.support.cli_instance import cellfeed, kill, processes, running
from tests.support.local_zookeeper import ZooKeeper
from tests.support.rides import ride
from tests.support.waiting import wait_until
from tests.support.worker_thread import worker_thread

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("readiness")]

KINDS: Final = ("worker", "gateway", "hang", "index", "warehouse", "backups")
CONFIG: Final = """
datastore: {{shards: 2}}
coordination: "{zookeeper}/readiness?timeout_s=1"
workers: [{{port: 0}}]
gateways: [{{port: 0, registry_port: 0, group_initial_delay_s: 0}}]
triggers: [{{name: hang, app: "{app}:program", lease_s: 2}}]
indexes: [{{name: index}}]
warehouses: [{{name: warehouse, directory: warehouse}}]
backups: [{{name: backups, directory: backups}}]
readiness: {{coordination_s: 3, source_s: 3, follower_s: 2}}
"""
PROGRAM: Final = """
from pathlib import Path
from time import sleep

from cellfeed.bridge.triggers.program import trigger

@trigger(column="BASE", group="hang")
def wait(row_key):
    while Path({closed!r}).exists():
        sleep(0.01)

program = [wait]
"""


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    if reason := local_zookeeper.why_not():
        pytest.skip(reason)
    server = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def instance(zookeeper: ZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An instance with every kind of process that needs no other server."""
    place = tmp_path_factory.mktemp("ready")
    app = place / "program.py"
    app.write_text(PROGRAM.format(closed=str(place / "closed")))
    with running(place, CONFIG.format(zookeeper=zookeeper.url, app=app)) as run_dir:
        yield run_dir


def asked(run_dir: Path, name: str, route: str) -> tuple[int, dict[str, Any]]:
    url = f"http://127.0.0.1:{processes(run_dir)[name]['ports']['health']}/{route}"
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def codes(run_dir: Path, name: str) -> list[str]:
    status, found = asked(run_dir, name, "readyz")
    found_codes = [each["code"] for each in found["reasons"]]
    assert (status == 200) is (not found_codes)
    return found_codes


def all_ready(run_dir: Path) -> bool:
    return not any(codes(run_dir, name) for name in KINDS)


def test_every_kind_is_ready_on_a_port_of_its_own(instance: Path) -> None:
    wait_until(lambda: all_ready(instance), "all are ready")
    assert [asked(instance, name, "livez")[0] for name in KINDS] == [200] * len(KINDS)
    http = processes(instance)["worker"]["ports"]["http"]
    for route in ("livez", "readyz"):
        with urllib.request.urlopen(f"http://127.0.0.1:{http}/{route}", timeout=30) as answer:
            assert json.load(answer)["ready"] is True


def test_coordination_that_is_away_is_a_reason_until_it_is_back_and_ends_nobody(
    instance: Path, zookeeper: ZooKeeper
) -> None:
    wait_until(lambda: all_ready(instance), "all are ready")
    zookeeper.kill()
    for name in ("worker", "gateway", "hang", "index"):
        wait_until(lambda: "coordination-away" in codes(instance, name), f"{name} misses it")  # noqa: B023
        assert asked(instance, name, "livez")[0] == 200
    zookeeper.start()
    wait_until(lambda: all_ready(instance), "all are ready again")


def test_a_trigger_that_stands_behind_its_log_is_a_reason_until_it_moves(instance: Path) -> None:
    wait_until(lambda: all_ready(instance), "all are ready")
    closed = instance.parent / "closed"
    closed.touch()
    http = processes(instance)["worker"]["ports"]["http"]
    with Client(f"http://127.0.0.1:{http}", "trips") as client:
        client.put_cells([ride(1)])
    wait_until(lambda: codes(instance, "hang") == ["follower-stands"], "the trigger stands")
    [reason] = asked(instance, "hang", "readyz")[1]["reasons"]
    assert reason["part"] == "group hang"
    closed.unlink()
    wait_until(lambda: all_ready(instance), "the trigger moves")


def test_a_warehouse_whose_gateway_is_gone_is_not_ready(instance: Path) -> None:
    wait_until(lambda: all_ready(instance), "all are ready")
    kill(processes(instance)["gateway"]["pid"])
    wait_until(lambda: codes(instance, "warehouse") == ["source-away"], "the loader misses it")
    assert asked(instance, "warehouse", "livez")[0] == 200
    back = cellfeed("start", "gateway", "--run-dir", str(instance))
    assert back.returncode == 0, back.stderr
    wait_until(lambda: all_ready(instance), "all are ready again")


# --- in this process ------------------------------------------------------------------------------


@pytest.fixture
def _watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_registry", progress._Registry())


@pytest.mark.usefixtures("_watches")
def test_a_worker_whose_event_loop_hangs_is_not_alive(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_limits(ProgressLimits(event_loop_s=0.5))
    begun, released = threading.Event(), threading.Event()

    def hang(_: float) -> None:
        begun.set()
        released.wait(60)

    with worker_thread(datastore):
        monkeypatch.setattr(BODIES, "end_overdue", hang)
        assert begun.wait(60)
        wait_until(lambda: [each.part for each in unalive()] == ["of the worker"], "it stands")
        released.set()
        wait_until(lambda: unalive() == [], "it turns")
    assert unready() == []


@pytest.mark.usefixtures("_watches")
def test_a_trigger_worker_that_no_longer_looks_at_the_logs_is_not_ready(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_limits(ProgressLimits(loop_s=0.3))
    begun, released, stop = threading.Event(), threading.Event(), threading.Event()
    look = datastore.engine.heads_since

    def hang(mark: object) -> Any:
        if mark is not None:  # the first look is as usual
            begun.set()
            released.wait(60)
        return look(mark)

    monkeypatch.setattr(datastore.engine, "heads_since", hang)
    worker = threading.Thread(
        target=run_trigger_worker,
        args=([], datastore, StoreCoordinator(datastore.state), "w", stop),
    )
    worker.start()
    assert begun.wait(60)
    wait_until(lambda: [each.part for each in unready()] == ["triggers w"], "it stands")
    released.set()
    wait_until(lambda: unready() == [], "it looks again")
    stop.set()
    worker.join(60)
