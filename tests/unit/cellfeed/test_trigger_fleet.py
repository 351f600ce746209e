"""The workers of one ``triggers run``: those that die are started again with growing patience,
those that would die again are not; all are ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cellfeed.config.model import TriggersConfig
from cellfeed.instance import trigger_fleet
from cellfeed.instance.restarts import RESTART_DELAY_MAX_S, RESTART_DELAY_MIN_S
from cellfeed.instance.trigger_fleet import TriggerFleet, worker_names
from cellfeed.processes import child
from cellfeed.store.errors import InvalidRequest

READY = (
    "import os, sys, json; given = json.loads(sys.stdin.readline()); os.write(given['ready_fd'],"
    " b'!'); os.close(given['ready_fd']); "
)
"""The first step of every worker."""


class Fleet:
    """A fleet whose workers run a line of Python instead."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, count: int = 2
    ) -> None:
        self.said: list[str] = []
        popen = subprocess.Popen

        def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
            return popen([sys.executable, "-c", line, command[-1]], **options)

        monkeypatch.setattr(
            child,
            "subprocess",
            SimpleNamespace(Popen=start),
        )
        names = [f"w{number}" for number in range(1, count + 1)]
        self.fleet = TriggerFleet(
            tmp_path / "config.yaml", tmp_path, TriggersConfig(app="x"), names, self.said.append
        )

    def run(self, *, stop_when: str) -> int:
        """Until something was said that begins so."""
        return self.fleet.run(lambda: any(line.startswith(stop_when) for line in self.said))


@pytest.mark.integration
def test_a_worker_whose_program_is_wrong_ends_all_with_its_code_and_is_the_only_one_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fleet = Fleet(monkeypatch, tmp_path, "raise SystemExit(2)", count=3)
    assert fleet.run(stop_when="never") == 2
    assert [line.split(" (")[0] for line in fleet.said] == [
        "w1 started",
        "w1 has ended with exit code 2",
    ]


@pytest.mark.integration
def test_a_worker_that_protects_data_later_ends_the_others_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fleet = Fleet(
        monkeypatch, tmp_path, READY + "sys.argv[1] == 'w2' and sys.exit(3); sys.stdin.read()"
    )
    assert fleet.run(stop_when="never") == 3
    assert "w2 has ended with exit code 3" in fleet.said
    assert "w1 has ended with signal 15" in fleet.said


@pytest.mark.integration
def test_a_worker_that_dies_is_started_again_with_growing_patience(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now_s = 1000.0
    processes: list[subprocess.Popen[bytes]] = []
    starts: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now_s
        processes[-1].wait(30)
        now_s += seconds

    fleet = Fleet(monkeypatch, tmp_path, READY + "sys.exit(1)", count=1)
    own_subprocess: Any = vars(child)["subprocess"]  # the one that Fleet has put there
    start = own_subprocess.Popen

    def noted(*arguments: Any, **options: Any) -> Any:
        starts.append(now_s)
        processes.append(start(*arguments, **options))
        return processes[-1]

    monkeypatch.setattr(own_subprocess, "Popen", noted)
    monkeypatch.setattr(
        trigger_fleet, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=sleep)
    )
    fleet.fleet.run(lambda: len(starts) >= 6)
    waits = [after - before for before, after in pairwise(starts)]
    assert waits[0] >= RESTART_DELAY_MIN_S
    assert all(longer >= 1.5 * shorter for shorter, longer in pairwise(waits))
    assert max(waits) < RESTART_DELAY_MAX_S


@pytest.mark.integration
def test_a_worker_that_ignores_sigterm_is_killed_and_the_command_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(trigger_fleet, "STOP_TIMEOUT_S", 1.0)
    line = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        + READY
        + "import time; time.sleep(600)"
    )
    fleet = Fleet(monkeypatch, tmp_path, line, count=2)
    assert fleet.run(stop_when="w2 started") == 1
    assert any(line.endswith("did not end within 1 s and was killed") for line in fleet.said)


def test_names_are_of_this_host_and_process_and_a_prefix_is_a_plain_word() -> None:
    host, pid = socket.gethostname(), os.getpid()
    assert worker_names("", 2) == [f"{host}-{pid}-1", f"{host}-{pid}-2"]
    assert worker_names("rides", 1) == [f"rides-{host}-{pid}-1"]
    for wrong in ("a b", "a/b", "-a", "x" * 42):
        with pytest.raises(InvalidRequest, match="--name-prefix"):
            worker_names(wrong, 1)


@pytest.mark.parametrize(("codes", "well"), [((0, 0), True), ((1, 0), False), ((0, -9), False)])
def test_the_command_fails_when_one_worker_ended_badly(
    tmp_path: Path, codes: tuple[int, ...], well: bool
) -> None:
    names = [f"w{number}" for number in range(len(codes))]
    fleet = TriggerFleet(tmp_path / "c", tmp_path, TriggersConfig(app="x"), names, lambda _: None)
    for worker, code in zip(fleet._workers, codes, strict=True):
        read_fd, write_fd = os.pipe()
        os.close(write_fd)
        process = SimpleNamespace(
            terminate=lambda: None, wait=lambda _s, code=code: code, stdin=None
        )
        worker.process, worker.ready_fd = cast("Any", process), read_fd
    assert fleet._drain() is well
