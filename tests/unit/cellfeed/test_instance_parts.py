"""Parts of an instance by themselves: readiness of processes, their order at the end, and their
reports in the run directory."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from cellfeed.config.model import Config, IndexWorkersConfig, TriggersConfig
from cellfeed.instance import supervisor
from cellfeed.instance.supervisor import start_one, stop_all
from cellfeed.kinds.known import process_names
from cellfeed.processes import child
from cellfeed.processes.reports import ProcessEntry, Ready, Stopped
from cellfeed.run_dir import RunDir


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    directory = RunDir(tmp_path / "run")
    directory.make()
    return directory


def say_ready(run_dir: RunDir, pid: int, port: int) -> None:
    ready = msgspec.json.encode(Ready(pid, 1.0, {"http": port}))
    (run_dir.path / "ready" / "worker.json").write_bytes(ready)


def test_a_process_of_an_earlier_run_does_not_stand_for_a_starting_one(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = SimpleNamespace(pid=77, poll=lambda: None, kill=lambda: None, wait=lambda: None)
    monkeypatch.setattr(supervisor, "launch", lambda *_, **__: process)
    monkeypatch.setattr(
        child,
        "time",
        SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: say_ready(run_dir, 77, 2)),
    )
    say_ready(run_dir, 66, 1)
    entry = start_one(run_dir, "worker", "worker")
    assert (entry.pid, entry.ports) == (77, {"http": 2})


def test_servers_end_last_whenever_they_were_started() -> None:
    started = [("worker", "worker"), ("db", "mariadb"), ("gateway", "gateway")]
    ended: list[str] = []

    def stop_process(name: str) -> bool:
        ended.append(name)
        return True

    directory = SimpleNamespace(
        processes=lambda: [ProcessEntry(name, kind, 1, {}, "") for name, kind in started],
        alive=lambda _: True,
        stop_process=stop_process,
        forget_all=lambda: None,
    )
    stop_all(cast("Any", directory), lambda _: None)
    assert ended == ["gateway", "worker", "db"]


def test_a_process_is_missed_until_it_has_started_or_the_instance_is_forgotten(
    run_dir: RunDir,
) -> None:
    for name in ("a", "b"):
        run_dir.say_missing(name, "its port is taken")
    run_dir.record(ProcessEntry("a", "worker", 1, {}, "log"))
    assert run_dir.missing() == {"b": "its port is taken"}
    run_dir.forget_all()
    assert (run_dir.missing(), run_dir.processes()) == ({}, [])


def test_work_stopped_by_an_earlier_process_is_not_shown_for_the_present_one(
    run_dir: RunDir,
) -> None:
    run_dir.say_ready("warehouse", {})
    run_dir.say_stopped("warehouse", ["partition 3 is stopped"])
    assert run_dir.troubles("warehouse") == ["partition 3 is stopped"]
    of_another = Stopped(os.getpid() + 1, ["partition 4 is stopped"])
    path = run_dir.path / "stopped" / "warehouse.json"
    path.write_bytes(msgspec.json.encode(of_another))
    assert run_dir.troubles("warehouse") == []


def test_a_configured_port_takes_precedence_over_a_chosen_one(run_dir: RunDir) -> None:
    assert run_dir.kept_port("worker", "http", 0) == 0
    run_dir.say_ready("worker", {"http": 1234})
    assert run_dir.kept_port("worker", "http", 0) == 1234
    assert run_dir.kept_port("worker", "http", 7420) == 7420
    assert run_dir.kept_port("worker", "other", 0) == 0


def test_entries_for_several_processes_have_numbered_names() -> None:
    config = Config(
        workers=[],
        gateways=[],
        indexes=[IndexWorkersConfig("index", 2), IndexWorkersConfig("more")],
        triggers=[TriggersConfig("a.py", "bills", 3)],
    )
    assert [name for name, _ in process_names(config)] == [
        "bills-1",
        "bills-2",
        "bills-3",
        "index-1",
        "index-2",
        "more",
    ]


def test_a_setting_names_the_run_directory_wherever_it_runs(run_dir: RunDir) -> None:
    settings = {"books": "{run_dir}/books", "tries": 3}
    assert TriggersConfig("a.py", settings=settings).settings_in(run_dir.path) == {
        "books": f"{run_dir.path}/books",
        "tries": 3,
    }
