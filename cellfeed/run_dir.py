"""The run directory of one instance: its configuration, processes, ports and logs.

config.yaml       the configuration in force
processes.json    [{"name", "kind", "pid", "ports", "log"}], replaced as a whole at every change
ready/NAME.json   written by a process when it serves: its pid, when it began, its ports
missing/NAME      why a server that is to run could not be started yet
troubles/NAME.json  written by a process when one of its loops dies: its pid, and the loops
stopped/NAME.json  written by a process that stops a part of its work: its pid, and each reason
recovery/NAME.json  written by a process that takes backups: the recovery point, reported faults
logs/NAME.log     the output of a process
supervisor.lock   held by the running ``cellfeed up``
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import msgspec
import psutil

from cellfeed.processes.reports import ProcessEntry, Ready, Stopped, Troubles, replace_file, said
from cellfeed.processes.running import began_s, end_process, running_process
from cellfeed.store.background import LoopTrouble
from cellfeed.store.backups.due import Report
from cellfeed.store.errors import InvalidRequest, NotFound


class RunDir:
    """See the module."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.config = self.path / "config.yaml"
        self._processes = self.path / "processes.json"

    def make(self) -> None:
        for folder in (
            self.path,
            self.path / "ready",
            self.path / "missing",
            self.path / "troubles",
            self.path / "stopped",
            self.path / "recovery",
            self.path / "logs",
        ):
            folder.mkdir(parents=True, exist_ok=True)

    def inside(self, directory: str) -> Path:
        """A configured folder: a relative one lies in the run directory."""
        return self.path / directory

    def unique_name(self, name: str) -> str:
        """A name for a process of this run directory that no other one has, the same at every
        start. A loader that was killed and started again so takes its own place at once, without a
        rebalance."""
        return f"{name}-{sha256(str(self.path.resolve()).encode()).hexdigest()[:8]}"

    def log(self, name: str) -> Path:
        return self.path / "logs" / f"{name}.log"

    # --- processes.json ---------------------------------------------------------------------------

    def processes(self) -> list[ProcessEntry]:
        """The processes that were started last; empty when none was. Raises InvalidRequest for a
        file that is not one."""
        try:
            return msgspec.json.decode(self._processes.read_bytes(), type=list[ProcessEntry])
        except FileNotFoundError:
            return []
        except msgspec.MsgspecError as error:
            raise InvalidRequest(f"{self._processes} is damaged: {error}") from error

    def process(self, name: str) -> ProcessEntry:
        for entry in self.processes():
            if entry.name == name:
                return entry
        raise NotFound(
            f"{self.path} has no process {name!r}; it has"
            f" {', '.join(entry.name for entry in self.processes()) or 'none'}"
        )

    def record(self, entry: ProcessEntry) -> None:
        """Adds or replaces one entry; safe against another ``cellfeed`` doing the same."""
        with self._locked("processes.lock"):
            entries = self.processes()
            place = next(
                (index for index, old in enumerate(entries) if old.name == entry.name), None
            )
            if place is None:
                entries.append(entry)
            else:
                entries[place] = entry
            replace_file(
                self._processes, msgspec.json.format(msgspec.json.encode(entries), indent=2) + b"\n"
            )
        self._missing(entry.name).unlink(missing_ok=True)

    def forget_all(self) -> None:
        with self._locked("processes.lock"):
            self._processes.unlink(missing_ok=True)
        for name in self.missing():
            self._missing(name).unlink(missing_ok=True)

    # --- what could not be started ----------------------------------------------------------------

    def say_missing(self, name: str, reason: str) -> None:
        """Notes that a process is to run and could not be started; :meth:`record` ends it."""
        replace_file(self._missing(name), reason.encode())

    def missing(self) -> dict[str, str]:
        """By name, why it could not be started."""
        found = {}
        for path in sorted(self.path.glob("missing/[!.]*")):
            with suppress(FileNotFoundError):
                found[path.name] = path.read_text(errors="replace")
        return found

    def _missing(self, name: str) -> Path:
        return self.path / "missing" / name

    # --- loops that died --------------------------------------------------------------------------

    def say_troubles(self, name: str, loops: Sequence[LoopTrouble]) -> None:
        """Called by a process when one of its loops dies, or a dead one is closed."""
        replace_file(
            self.path / "troubles" / f"{name}.json",
            msgspec.json.encode(Troubles(os.getpid(), list(loops))),
        )

    def say_stopped(self, name: str, reasons: Sequence[str]) -> None:
        """Called by a process when a part of its work stops, or resumes."""
        replace_file(
            self.path / "stopped" / f"{name}.json",
            msgspec.json.encode(Stopped(os.getpid(), list(reasons))),
        )

    def troubles(self, name: str) -> list[str]:
        """Of the running process of that name: loops that are dead, or died a short while ago, and
        parts of its work that it stopped. Discards the words of the process before it."""
        process, now_s = self._running(name), time.monotonic()
        if process is None:
            return []
        found: list[str] = []
        died = said(self.path / "troubles" / f"{name}.json", Troubles)
        if died is not None and died.pid == process.pid:
            found += [str(each) for each in died.loops if not each.is_over(now_s)]
        stopped = said(self.path / "stopped" / f"{name}.json", Stopped)
        if stopped is not None and stopped.pid == process.pid:
            found += stopped.reasons
        return found

    # --- recovery points --------------------------------------------------------------------------

    def say_recovery(self, name: str, report: Report) -> None:
        """Called by a process that takes backups, after each look at their folder."""
        replace_file(self._recovery(name), msgspec.json.encode(report))

    def recovery(self, name: str) -> Report:
        """The last report of the process of that name, also of one that no longer runs."""
        try:
            return msgspec.json.decode(self._recovery(name).read_bytes(), type=Report)
        except (FileNotFoundError, msgspec.MsgspecError):
            return Report()

    def _recovery(self, name: str) -> Path:
        return self.path / "recovery" / f"{name}.json"

    # --- ready files ------------------------------------------------------------------------------

    def say_ready(self, name: str, ports: dict[str, int], pid: int | None = None) -> None:
        """Called by a process once it serves, or with the pid of one that cannot say so itself."""
        process = psutil.Process(pid)
        replace_file(
            self._ready(name), msgspec.json.encode(Ready(process.pid, began_s(process), ports))
        )

    def ready(self, name: str) -> Ready | None:
        try:
            return msgspec.json.decode(self._ready(name).read_bytes(), type=Ready)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def alive(self, name: str) -> bool:
        """Whether the process that last said it was ready under this name still runs."""
        return self._running(name) is not None

    def kept_port(self, name: str, which: str, configured: int) -> int:
        """The port to listen on: the configured one, or for 0 the one that was chosen before."""
        ready = self.ready(name)
        return configured or (ready.ports.get(which, 0) if ready else 0)

    def stop_process(self, name: str) -> bool:
        """SIGTERM, and SIGKILL when it does not end in time; False when it had to be killed. Never
        touches another process that has its pid now."""
        process = self._running(name)
        return process is None or end_process(process)

    def _running(self, name: str) -> psutil.Process | None:
        ready = self.ready(name)
        return None if ready is None else running_process(ready.pid, ready.began_s)

    def _ready(self, name: str) -> Path:
        return self.path / "ready" / f"{name}.json"

    # --- locks ------------------------------------------------------------------------------------

    @contextmanager
    def supervised(self) -> Iterator[None]:
        """Held by the one ``cellfeed up`` of this directory. Raises InvalidRequest when another one
        runs."""
        with (self.path / "supervisor.lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InvalidRequest(
                    f"an instance runs in {self.path} already; end it with: cellfeed down --run-dir"
                    f" {self.path}"
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def supervisor_pid(self) -> int | None:
        """The pid of the running ``cellfeed up``; None when none runs."""
        try:
            with (self.path / "supervisor.lock").open("r") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(file.read() or 0) or None
        except FileNotFoundError:
            pass
        return None

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        with (self.path / name).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
