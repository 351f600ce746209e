"""The supervisor: a dead process is reported once and, where asked for, started again with growing
patience; told to stop it waits for nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from cellfeed.config.model import Config, TriggersConfig, WorkerConfig
from cellfeed.config.servers import ZooKeeperServerConfig
from cellfeed.instance import supervisor
from cellfeed.instance.config_file import write_config
from cellfeed.instance.restarts import RESTART_DELAY_MAX_S, RESTART_DELAY_MIN_S, STEADY_S
from cellfeed.instance.supervisor import (
    start_again,
    start_all,
    start_one,
    supervise,
)
from cellfeed.processes import child
from cellfeed.processes.reports import ProcessEntry
from cellfeed.run_dir import RunDir
from cellfeed.store.errors import InvalidRequest, NotFound, Unavailable

LOOK_S = supervisor._LOOK_INTERVAL_S
MISCONFIGURED = -2.0


class Instance:
    """A run directory whose processes live for as long as the test says, on a clock that moves when
    the supervisor sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lives: dict[str, list[float]]) -> None:
        self.path = Path("run")
        self.now_s = 1_000.0
        self.lives = {name: list(each) for name, each in lives.items()}
        self.dies_at = {name: self.now_s + each.pop(0) for name, each in self.lives.items()}
        self.starts: dict[str, list[float]] = {name: [] for name in lives}
        self.said: list[str] = []
        self.never_started: dict[str, str] = {}
        monkeypatch.setattr(
            supervisor, "time", SimpleNamespace(monotonic=lambda: self.now_s, sleep=self._sleep)
        )
        monkeypatch.setattr(supervisor, "start_one", self._start)
        monkeypatch.setattr(supervisor, "_reap", lambda: None)

    def processes(self) -> list[ProcessEntry]:
        return [ProcessEntry(name, "worker", 1, {}, "log") for name in self.lives]

    def alive(self, name: str) -> bool:
        return self.now_s < self.dies_at[name]

    def missing(self) -> dict[str, str]:
        return dict(self.never_started)

    def say_missing(self, name: str, reason: str) -> None:
        self.never_started[name] = reason

    def watch(self, until_s: float, *, restart: bool = True, config: Config | None = None) -> None:
        end_s = self.now_s + until_s
        run_dir = cast("RunDir", self)
        config = config or Config(restart=restart)
        supervise(run_dir, config, self.said.append, lambda: self.now_s >= end_s)

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def _start(
        self, _directory: object, name: str, kind: str, _given_up: Callable[[], bool]
    ) -> ProcessEntry:
        self.starts[name].append(self.now_s)
        life_s = self.lives[name].pop(0)
        if life_s == MISCONFIGURED:
            raise InvalidRequest("config file config.yaml is not YAML")
        if life_s < 0:
            raise Unavailable("its port is taken")
        self.dies_at[name] = self.now_s + life_s
        self.never_started.pop(name, None)
        return ProcessEntry(name, kind, 2, {}, "log")


WORKS_AGAIN_S = 10.0
"""I21: everything works again so long after a fault heals."""

START_AND_JOIN_S = 4.0
"""The start of a process and the next share-out of its group take so long on a busy machine."""


def waits(starts: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(starts)]


def test_a_process_that_dies_repeatedly_is_started_after_a_growing_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instance = Instance(monkeypatch, {"worker": [1.0] + [0.0] * 80})
    instance.watch(300)
    starts = instance.starts["worker"]
    assert starts[0] == pytest.approx(1_001, abs=2 * LOOK_S), "the first time at once"
    expected = [
        min(RESTART_DELAY_MIN_S * 2**number, RESTART_DELAY_MAX_S)
        for number in range(len(starts) - 1)
    ]
    assert waits(starts) == pytest.approx(expected, abs=2 * LOOK_S)
    assert expected[-1] == RESTART_DELAY_MAX_S


@pytest.mark.parametrize("deaths", range(1, 12))
def test_a_process_that_died_often_is_started_in_time_once_it_can_live(
    monkeypatch: pytest.MonkeyPatch, deaths: int
) -> None:
    instance = Instance(monkeypatch, {"worker": [1.0] + [0.0] * deaths + [1_000.0]})
    instance.watch(300)
    *_, last_death, alive = instance.starts["worker"]
    assert alive - last_death <= WORKS_AGAIN_S - START_AND_JOIN_S


def test_a_server_that_never_started_is_tried_after_a_growing_delay_and_its_reason_is_logged_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instance = Instance(monkeypatch, {"zookeeper": [1_000.0, *[-1] * 12, 1_000.0]})
    instance.never_started["zookeeper"] = "its port is taken"
    instance.watch(200, config=Config(restart=False, servers=[ZooKeeperServerConfig()]))
    starts = instance.starts["zookeeper"]
    expected = [min(RESTART_DELAY_MIN_S * 2**number, RESTART_DELAY_MAX_S) for number in range(12)]
    assert waits(starts) == pytest.approx(expected, abs=2 * LOOK_S)
    assert instance.said == ["zookeeper started at last (pid 2)"], (
        "why it does not start was said when it was first tried"
    )
    assert instance.missing() == {}


def test_a_process_that_does_not_start_is_tried_until_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instance = Instance(monkeypatch, {"worker": [1.0, -1, -1, -1, 1_000.0]})
    instance.watch(30)
    assert len(instance.starts["worker"]) == 4
    assert instance.alive("worker")
    assert sum("has died" in line for line in instance.said) == 1
    assert sum("its port is taken" in line for line in instance.said) == 3
    assert "worker started again (pid 2)" in instance.said


def test_every_death_of_a_process_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = Instance(monkeypatch, {"worker": [1.0, 1.0, 1.0, 1_000.0]})
    instance.watch(30)
    assert sum("has died" in line for line in instance.said) == 3


@pytest.mark.parametrize("has_started", [True, False])
def test_a_mistake_in_the_configuration_of_a_running_instance_ends_no_other_process(
    monkeypatch: pytest.MonkeyPatch, has_started: bool
) -> None:
    lives = [1.0 if has_started else 0.0, MISCONFIGURED, MISCONFIGURED, 1_000.0]
    instance = Instance(monkeypatch, {"zookeeper": lives})
    if not has_started:
        instance.never_started["zookeeper"] = "its port is taken"
    instance.watch(30, config=Config(restart=has_started, servers=[ZooKeeperServerConfig()]))
    assert instance.alive("zookeeper")
    assert any("config.yaml is not YAML" in line for line in instance.said)


def test_a_process_that_lived_long_enough_is_started_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instance = Instance(monkeypatch, {"worker": [1.0] + [0.0] * 5 + [2 * STEADY_S, 1_000.0]})
    instance.watch(10 * STEADY_S)
    starts = instance.starts["worker"]
    assert len(starts) == 7
    assert waits(starts)[-2] > 2.0, "it had become impatient with it"
    assert waits(starts)[-1] == pytest.approx(2 * STEADY_S, abs=2 * LOOK_S), "and forgot"


def test_patience_with_one_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = Instance(
        monkeypatch,
        {"broken": [1.0] + [0.0] * 40, "worker": [100.0, 1_000.0], "gateway": [1_000.0]},
    )
    instance.watch(150)
    assert instance.starts["worker"] == pytest.approx([1_100], abs=2 * LOOK_S)
    assert instance.starts["gateway"] == []


def test_without_restart_a_death_is_reported_once_with_the_command_that_restarts_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instance = Instance(monkeypatch, {"worker": [1.0], "gateway": [1_000.0]})
    instance.watch(100, restart=False)
    assert instance.starts == {"worker": [], "gateway": []}
    assert [line for line in instance.said if "worker" in line] == [
        "worker (pid 1) has died; its log is log",
        "bring it back with: cellfeed start --run-dir run worker",
    ]


@pytest.fixture
def hanging(tmp_path: Path) -> RunDir:
    """A configuration whose trigger program takes for ever to load."""
    directory = RunDir(tmp_path / "run")
    directory.make()
    program = tmp_path / "slow.py"
    program.write_text("import time\ntime.sleep(600)\n")
    write_config(
        Config(workers=[], gateways=[], triggers=[TriggersConfig(app=str(program))]),
        directory.config,
    )
    return directory


def started_for(directory: RunDir) -> list[psutil.Process]:
    found = []
    for each in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # a zombie, whose command line is gone, is one too
            if str(directory.path) in each.cmdline():
                found.append(each)
    return found


@pytest.mark.integration
def test_a_start_that_nobody_wants_any_more_is_given_up_and_leaves_no_process(
    hanging: RunDir,
) -> None:
    seen: list[psutil.Process] = []

    def given_up() -> bool:
        seen[:] = started_for(hanging) or seen
        return bool(seen)

    with pytest.raises(Unavailable, match="triggers was asked to end before it served"):
        start_one(hanging, "triggers", "triggers", given_up)
    assert seen, "there was a process to end"
    assert not started_for(hanging)
    assert hanging.processes() == []


@pytest.mark.integration
def test_a_start_that_takes_too_long_is_reported_and_leaves_no_process(
    hanging: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "START_TIMEOUT_S", 0.3)
    with pytest.raises(Unavailable, match=r"triggers did not start; the end of .*triggers\.log"):
        start_one(hanging, "triggers", "triggers")
    assert not started_for(hanging)


def test_when_one_process_cannot_start_the_earlier_ones_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    ended: list[str] = []

    def start(_directory: RunDir, name: str, kind: str) -> ProcessEntry:
        started.append(name)
        if name == "second":
            raise Unavailable("no")
        return ProcessEntry(name, kind, 1, {"http": 1}, "log")

    monkeypatch.setattr(supervisor, "start_one", start)
    monkeypatch.setattr(supervisor, "stop_all", lambda _directory, _say: ended.append("all"))
    workers = [WorkerConfig(name=name, port=0) for name in ("first", "second", "third")]
    with pytest.raises(Unavailable):
        start_all(RunDir(tmp_path / "run"), Config(workers=workers), lambda _: None)
    assert (started, ended) == (["first", "second"], ["all"])


def test_an_unconfigured_or_running_process_is_not_started_again(tmp_path: Path) -> None:
    directory = RunDir(tmp_path / "run")
    directory.make()
    write_config(Config(), directory.config)
    with pytest.raises(NotFound, match="no process 'other'; it has worker, gateway"):
        start_again(directory, "other")
    directory.say_ready("worker", {})  # this very process stands for it
    directory.record(ProcessEntry("worker", "worker", 4711, {}, "log"))
    with pytest.raises(InvalidRequest, match="runs already, with pid 4711"):
        start_again(directory, "worker")
