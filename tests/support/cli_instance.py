"""An instance of its own for a test: started with the command line, ended in any case."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
CELLFEED = [sys.executable, "-m", "cellfeed.cli.main"]
EMBEDDED = """
datastore: {shards: 4}
workers: [{port: 0}]
gateways: [{port: 0, registry_port: 0, group_initial_delay_s: 0}]
"""


def cellfeed(*arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(
        [*CELLFEED, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@contextmanager
def running(directory: Path, config: str = EMBEDDED) -> Iterator[Path]:
    """An instance that is up; gives its run directory."""
    file, run_dir = directory / "cellfeed.yaml", directory / "run"
    directory.mkdir(parents=True, exist_ok=True)
    file.write_text(config)
    with ended(run_dir):
        up = cellfeed("up", "--detach", "--config", str(file), "--run-dir", str(run_dir))
        assert up.returncode == 0, up.stderr
        yield run_dir


@contextmanager
def ended(run_dir: Path) -> Iterator[None]:
    """Processes that run in ``run_dir`` at the end are killed: only processes that name the
    directory in their own command line."""
    try:
        yield
    finally:
        for process in of_run_dir(run_dir):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
                process.kill()


def of_run_dir(run_dir: Path) -> list[psutil.Process]:
    """The live processes that were started for ``run_dir``, its supervisor included."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if (
                str(run_dir) in process.cmdline()
                and "cellfeed.cli.main" in process.cmdline()
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
    return found


def processes(run_dir: Path) -> dict[str, dict[str, Any]]:
    """processes.json by name."""
    return {entry["name"]: entry for entry in json.loads((run_dir / "processes.json").read_text())}


def accepts(port: int) -> bool:
    """Whether somebody listens on the port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def kill(pid: int) -> None:
    """``kill -9``, witnessed: returns when the process is gone."""
    os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE,
        f"{pid} dies",
    )
