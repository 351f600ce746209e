"""The worker processes of one ``cellfeed triggers run``: started, watched, started again when they
die, drained at the end.

Any number of these run at once, on any number of hosts: the workers find each other through the
coordination. Names are ``[PREFIX-]HOST-PID-NUMBER``, the pid being that of the ``run``: unique
among hosts and runs. A worker that is started again has the name of the one that died. So it takes
its place and its shards at once, instead of after a lease.

A worker that ends because it was used wrongly (exit code 2), or to protect data (3), would end so
again: then all end, with that code. Any other death is followed by a new start, with a growing
delay as in ``cellfeed up``. A kill -9 of the ``run`` itself ends its workers gently: they notice
that it is gone.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from cellfeed.config.model import TriggersConfig
from cellfeed.instance.restarts import Restarts
from cellfeed.instance.supervisor import Say
from cellfeed.instance.trigger_process import Specification
from cellfeed.processes.child import START_TIMEOUT_S, launch
from cellfeed.processes.running import STOP_TIMEOUT_S
from cellfeed.store.descriptors import is_readable
from cellfeed.store.errors import InvalidRequest

_LOOK_INTERVAL_S: Final = 0.1
_WOULD_END_AGAIN: Final = (2, 3)


@dataclass
class _Worker:
    name: str
    process: subprocess.Popen[bytes] | None = None
    ready_fd: int = -1
    restarts: Restarts = field(default_factory=Restarts)


class TriggerFleet:
    """See the module. Each worker reads ``config`` and ``run_dir`` for itself."""

    def __init__(
        self, config: Path, run_dir: Path, triggers: TriggersConfig, names: Sequence[str], say: Say
    ) -> None:
        self._config = config.absolute()
        self._run_dir = run_dir.absolute()
        self._triggers = triggers
        self._workers = [_Worker(name) for name in names]
        self._say = say

    def run(self, stopping: Callable[[], bool]) -> int:
        """Keeps the workers running until ``stopping`` says so, and drains them. The exit code: 0
        when all ended well."""
        try:
            code = self._keep_running(stopping)
        finally:
            drained = self._drain()
        return code or (0 if drained else 1)

    def _keep_running(self, stopping: Callable[[], bool]) -> int:
        # The first one alone: a fault of the program or the configuration is reported once, not by
        # each.
        self._start(self._workers[0])
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while (
            not stopping()
            and not self._has_begun(self._workers[0])
            and time.monotonic() < deadline_s
        ):
            if (code := self._look_at(self._workers[0])) is not None:
                return code
        while not stopping():
            for worker in self._workers:
                if (code := self._look_at(worker)) is not None:
                    return code
            time.sleep(_LOOK_INTERVAL_S)
        return 0

    def _look_at(self, worker: _Worker) -> int | None:
        """Starts a worker that does not run, when it is due; the exit code when there is no use in
        that."""
        if worker.process is not None:
            code = worker.process.poll()
            if code is None:
                return None
            self._forget(worker)
            self._say(f"{worker.name} has ended with {_described(code)}")
            if code in _WOULD_END_AGAIN:
                return code
        if worker.restarts.is_due(time.monotonic()):
            self._start(worker)
        return None

    def _start(self, worker: _Worker) -> None:
        worker.restarts.tried(time.monotonic())
        read_fd, write_fd = os.pipe()
        specification = Specification(
            str(self._config), str(self._run_dir), self._triggers, worker.name, write_fd
        )
        try:
            worker.process = launch(
                [sys.executable, "-m", "cellfeed.instance.trigger_process", worker.name],
                {"PYTHONUNBUFFERED": "1"},
                stdin=subprocess.PIPE,
                pass_fds=(write_fd,),
            )
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        worker.ready_fd = read_fd
        assert worker.process.stdin is not None  # noqa: S101 (a pipe, as asked for)
        with suppress(BrokenPipeError):  # it died at once, which is seen at the next look
            worker.process.stdin.write(msgspec.json.encode(specification) + b"\n")
            worker.process.stdin.flush()
        self._say(f"{worker.name} started (pid {worker.process.pid})")

    def _has_begun(self, worker: _Worker) -> bool:
        """Waits a moment for it."""
        if worker.process is None:
            time.sleep(_LOOK_INTERVAL_S)
            return False
        if not is_readable(worker.ready_fd, _LOOK_INTERVAL_S):
            return False
        begun = os.read(worker.ready_fd, 1) == b"!"
        if not begun:
            worker.process.wait()  # the pipe ended because the process does
        return begun

    def _forget(self, worker: _Worker) -> None:
        if worker.process is not None and worker.process.stdin is not None:
            worker.process.stdin.close()
        os.close(worker.ready_fd)
        worker.process = None

    def _drain(self) -> bool:
        """Ends all workers, each after the cells under way. Whether all ended well."""
        left = [worker for worker in self._workers if worker.process is not None]
        for worker in left:
            assert worker.process is not None  # noqa: S101 (chosen so in the line above)
            worker.process.terminate()
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        well = True
        for worker in left:
            assert worker.process is not None  # noqa: S101 (as before)
            try:
                code = worker.process.wait(max(0.0, deadline_s - time.monotonic()))
                self._say(
                    f"{worker.name} has ended{'' if code == 0 else ' with ' + _described(code)}"
                )
            except subprocess.TimeoutExpired:
                worker.process.kill()
                code = worker.process.wait()
                self._say(f"{worker.name} did not end within {STOP_TIMEOUT_S:.0f} s and was killed")
            well = well and code == 0
            self._forget(worker)
        return well


def worker_names(prefix: str, processes: int) -> list[str]:
    """The names of this process's workers. Raises InvalidRequest for a prefix that is none."""
    if prefix and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,40}", prefix):
        raise InvalidRequest(
            f"--name-prefix {prefix!r}: 1 to 41 letters, digits, dots, dashes and underscores"
        )
    host = socket.gethostname() or "localhost"
    return [
        f"{prefix}-{host}-{os.getpid()}-{number}" if prefix else f"{host}-{os.getpid()}-{number}"
        for number in range(1, processes + 1)
    ]


def _described(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
