"""up, down, start: the files that are written, those that a killed process leaves behind, and that
nothing is ever left running."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path
from typing import BinaryIO

import psutil
import pytest

from tests.support.cli_instance import (
    CELLFEED,
    EMBEDDED,
    ROOT,
    accepts,
    cellfeed,
    ended,
    kill,
    of_run_dir,
    processes,
    running,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration
KEY = "5cb0f0a2-0000-4000-8000-000000000001"


def test_up_prints_addresses_and_processes_and_down_ends_every_process(tmp_path: Path) -> None:
    with running(tmp_path) as run_dir:
        found = processes(run_dir)
        assert [(entry["name"], entry["kind"]) for entry in found.values()] == [
            ("worker", "worker"),
            ("gateway", "gateway"),
        ]
        assert all(
            set(entry) == {"name", "kind", "pid", "ports", "log"} for entry in found.values()
        )
        assert set(found["worker"]["ports"]) == {"http", "health"}
        assert set(found["gateway"]["ports"]) == {"kafka", "registry", "health"}
        assert all(accepts(port) for entry in found.values() for port in entry["ports"].values())
        assert all(Path(entry["log"]).is_file() for entry in found.values())
        assert all(os.getsid(entry["pid"]) == entry["pid"] for entry in found.values()), (
            "each has a session of its own"
        )
        with urllib.request.urlopen(
            f"http://127.0.0.1:{found['worker']['ports']['http']}/health"
        ) as answer:
            assert answer.status == 200
        down = cellfeed("down", "--run-dir", str(run_dir))
        assert down.returncode == 0, down.stderr
        assert not (run_dir / "processes.json").exists()
        assert not of_run_dir(run_dir)
        again = cellfeed("down", "--run-dir", str(run_dir))
        assert (again.returncode, "nothing runs" in again.stdout) == (0, True)


def test_a_second_up_is_refused_with_the_reason_and_the_first_keeps_running(tmp_path: Path) -> None:
    with running(tmp_path) as run_dir:
        before = processes(run_dir)
        for extra in ((), ("--detach",)):
            second = cellfeed("up", "--run-dir", str(run_dir), *extra)
            assert second.returncode == 2
            assert "an instance runs" in second.stderr
            assert "cellfeed down" in second.stderr
        assert processes(run_dir) == before
        assert all(psutil.pid_exists(entry["pid"]) for entry in before.values())


def test_a_killed_process_leaves_the_others_alone_and_start_brings_it_back_on_its_ports(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as run_dir:
        before = processes(run_dir)
        put = cellfeed("put", KEY, "BASE", "1", '{"n":1}', "--run-dir", str(run_dir))
        assert put.returncode == 0, put.stderr
        kill(before["worker"]["pid"])
        said = run_dir / "logs" / "supervisor.log"
        wait_until(
            lambda: f"worker (pid {before['worker']['pid']}) has died" in said.read_text(),
            "the supervisor says so",
        )
        assert psutil.Process(before["gateway"]["pid"]).is_running()
        assert processes(run_dir) == before, "it is not started again by itself"
        start = cellfeed("start", "worker", "--run-dir", str(run_dir))
        assert start.returncode == 0, start.stderr
        after = processes(run_dir)
        assert after["worker"]["pid"] != before["worker"]["pid"]
        assert after["worker"]["ports"] == before["worker"]["ports"]
        assert after["gateway"] == before["gateway"]
        assert '"n":1' in cellfeed("get", KEY, "--run-dir", str(run_dir)).stdout
        refused = cellfeed("start", "worker", "--run-dir", str(run_dir))
        assert (refused.returncode, "runs already" in refused.stderr) == (2, True)


def test_restart_in_the_configuration_brings_a_killed_process_back(tmp_path: Path) -> None:
    with running(tmp_path, EMBEDDED + "restart: true\n") as run_dir:
        before = processes(run_dir)["worker"]
        kill(before["pid"])
        wait_until(
            lambda: processes(run_dir)["worker"]["pid"] != before["pid"],
            "the worker is started again",
        )
        assert processes(run_dir)["worker"]["ports"] == before["ports"]
        assert accepts(before["ports"]["http"])


def test_a_killed_supervisor_leaves_an_instance_that_serves_and_can_be_ended(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as run_dir:
        before = processes(run_dir)
        kill(int((run_dir / "supervisor.lock").read_text()))
        assert all(accepts(port) for entry in before.values() for port in entry["ports"].values())
        refused = cellfeed("up", "--run-dir", str(run_dir))
        assert (refused.returncode, "still runs" in refused.stderr) == (2, True)
        os.kill(before["worker"]["pid"], signal.SIGSTOP)  # down has to wake stopped processes
        down = cellfeed("down", "--run-dir", str(run_dir))
        assert down.returncode == 0, down.stderr
        assert not of_run_dir(run_dir)
        again = cellfeed(
            "up", "--detach", "--config", str(tmp_path / "cellfeed.yaml"), "--run-dir", str(run_dir)
        )
        assert again.returncode == 0, again.stderr


def in_front(directory: Path, run_dir: Path, said: BinaryIO) -> subprocess.Popen[bytes]:
    """``cellfeed up`` with the directory's configuration, not detached."""
    config = directory / "cellfeed.yaml"
    command = [*CELLFEED, "up", "--config", str(config), "--run-dir", str(run_dir)]
    return subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_up_ends_everything(tmp_path: Path, number: signal.Signals) -> None:
    run_dir, log = tmp_path / "run", tmp_path / "said"
    with ended(run_dir), log.open("wb") as said:
        (tmp_path / "cellfeed.yaml").write_text(EMBEDDED)
        up = in_front(tmp_path, run_dir, said)
        wait_until(
            lambda: "up: run directory" in log.read_text() or up.poll() is not None, "it is up"
        )
        assert len(of_run_dir(run_dir)) == 3, log.read_text()
        up.send_signal(number)
        assert up.wait(60) == 0, log.read_text()
        assert not of_run_dir(run_dir)
        assert "Traceback" not in log.read_text()


def test_a_signal_while_a_process_starts_leaves_nothing_running(tmp_path: Path) -> None:
    run_dir, log, begun = tmp_path / "run", tmp_path / "said", tmp_path / "begun"
    slow = tmp_path / "slow.py"
    slow.write_text(
        f"import time, pathlib\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(100)\n"
    )
    (tmp_path / "cellfeed.yaml").write_text(EMBEDDED + f"triggers: [{{app: {slow}}}]\n")
    with ended(run_dir), log.open("wb") as said:
        up = in_front(tmp_path, run_dir, said)
        wait_until(
            lambda: begun.exists() or up.poll() is not None, "the trigger process is starting"
        )
        assert len(of_run_dir(run_dir)) == 4, log.read_text()
        up.send_signal(signal.SIGTERM)
        assert up.wait(60) == 128 + signal.SIGTERM
        assert not of_run_dir(run_dir)


def test_a_process_that_cannot_start_ends_the_others_and_reports_the_reason(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with socket.create_server(("127.0.0.1", 0)) as taken, ended(run_dir):
        port = taken.getsockname()[1]
        (tmp_path / "cellfeed.yaml").write_text(
            f"workers: [{{port: 0}}]\ngateways: [{{port: {port}, registry_port: 0}}]\n"
        )
        up = cellfeed("up", "--config", str(tmp_path / "cellfeed.yaml"), "--run-dir", str(run_dir))
        assert up.returncode == 1
        assert "gateway did not start" in up.stderr
        assert str(run_dir / "logs" / "gateway.log") in up.stderr
        assert not of_run_dir(run_dir)


def test_a_configuration_that_is_refused_starts_nothing(tmp_path: Path) -> None:
    run_dir, file = tmp_path / "run", tmp_path / "cellfeed.yaml"
    for text, code in (("workers: [{host: 0.0.0.0}]", 3), ("workers: [{prot: 1}]", 2)):
        file.write_text(text)
        for extra in ((), ("--detach",)):
            up = cellfeed("up", "--config", str(file), "--run-dir", str(run_dir), *extra)
            assert up.returncode == code
            assert len(up.stderr.strip().splitlines()) == 1, up.stderr
            assert not run_dir.exists()
