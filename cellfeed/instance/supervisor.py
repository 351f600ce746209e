"""Starting, watching and ending the processes of one instance.

Each process has a session of its own, so a Ctrl-C at the terminal reaches only the supervisor,
which ends them in order; and ``kill -9`` of one, or of the supervisor, leaves the others alone. The
system reports which processes are alive (pid and start time); nothing is remembered. So ``start``,
``down`` and ``status`` work whether or not the supervisor is there.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import psutil

from cellfeed.config.model import Config
from cellfeed.instance.config_file import load_config, write_config
from cellfeed.instance.restarts import Restarts
from cellfeed.kinds.known import process_names
from cellfeed.processes.child import await_served, launch, starting
from cellfeed.processes.reports import ProcessEntry, Ready
from cellfeed.processes.running import STOP_TIMEOUT_S
from cellfeed.run_dir import RunDir
from cellfeed.servers.configured import SERVER_KINDS, configured_server, own_clusters
from cellfeed.servers.life import start_server
from cellfeed.store.errors import CellfeedError, InvalidRequest, NotFound, Unavailable

_log = logging.getLogger("cellfeed.instance.supervisor")
_LOOK_INTERVAL_S: Final = 0.2
_READY_INTERVAL_S: Final = 0.02

Say = Callable[[str], None]


def start_all(directory: RunDir, config: Config, say: Say) -> None:
    """Starts every process and waits until all of them serve: the servers first; then clusters that
    are made of them are initialised, unless they have been.

    A server that does not start is said so and left to :func:`supervise`: clusters tolerate the
    absence of a node. If any other process does not start, those started before are ended, and its
    error is raised. A new cluster needs all its servers, and a worker its store."""
    directory.make()
    for name, _ in process_names(config):
        if directory.alive(name):
            raise InvalidRequest(
                f"{name} of an earlier run still runs in {directory.path}; end it with: cellfeed"
                f" down --run-dir {directory.path}"
            )
    directory.forget_all()
    write_config(config, directory.config)
    try:
        servers = [(name, kind) for name, kind in process_names(config) if kind in SERVER_KINDS]
        for name, kind in servers:
            try:
                _start_and_say(directory, name, kind, say)
            except (Unavailable, OSError) as error:
                directory.say_missing(name, str(error))
                say(
                    f"{name} HAS NOT STARTED. The rest keeps running without it, and it is tried"
                    f" again: {error}"
                )
        _init_clusters(directory, config, say)
        for name, kind in process_names(config)[len(servers) :]:
            _start_and_say(directory, name, kind, say)
    except BaseException:
        stop_all(directory, lambda _: None)
        raise


def _init_clusters(directory: RunDir, config: Config, say: Say) -> None:
    if not (clusters := own_clusters(config)):
        return
    from cellfeed.assembly.clusters import (
        init_clusters,  # a supervisor of an embedded store opens none itself
    )

    try:
        for done in init_clusters(config, clusters):
            say(
                f"{done.cluster}: {done.master} is master{' (as before)' if done.was_there else ''}"
            )
    except Unavailable as error:
        reasons = "".join(f"\n{reason}" for reason in directory.missing().values())
        raise Unavailable(f"a cluster cannot be made of these servers: {error}{reasons}") from error


def _start_and_say(directory: RunDir, name: str, kind: str, say: Say) -> None:
    entry = start_one(directory, name, kind)
    # Clients use the others; probes find this one in processes.json.
    ports = ", ".join(f"{which} {port}" for which, port in entry.ports.items() if which != "health")
    say(f"{name} (pid {entry.pid}){': ' + ports if ports else ''}")


def start_again(directory: RunDir, name: str) -> ProcessEntry:
    """Starts one process of the configuration, on the ports that it had. Raises NotFound,
    InvalidRequest when it runs already, Unavailable when it does not start."""
    config = load_config(directory.config)
    kinds = dict(process_names(config))
    if name not in kinds:
        raise NotFound(f"the configuration has no process {name!r}; it has {', '.join(kinds)}")
    if directory.alive(name):
        raise InvalidRequest(f"{name} runs already, with pid {directory.process(name).pid}")
    return start_one(directory, name, kinds[name])


def start_one(
    directory: RunDir, name: str, kind: str, given_up: Callable[[], bool] = lambda: False
) -> ProcessEntry:
    """Starts a process and waits until it says that it serves. Raises Unavailable when it does not,
    or when ``given_up`` says that nobody wants it."""
    if kind in SERVER_KINDS:
        return start_server(
            configured_server(directory, load_config(directory.config), name), directory, given_up
        )
    log = directory.log(name)
    command = [sys.executable, "-m", "cellfeed.cli.main", "run", "--run-dir", str(directory.path)]

    def launched() -> subprocess.Popen[bytes]:
        return launch([*command, name], {"PYTHONUNBUFFERED": "1"}, log=log)

    with starting(launched) as process:

        def ready() -> Ready | None:
            said = directory.ready(name)
            return said if said is not None and said.pid == process.pid else None

        ports = await_served(
            name, process, log, ready, given_up, interval_s=_READY_INTERVAL_S
        ).ports
        entry = ProcessEntry(name, kind, process.pid, ports, str(log))
        directory.record(entry)
    return entry


def stop_all(directory: RunDir, say: Say) -> None:
    """Ends every process, the last started first: consumers before the gateway that they read from,
    the gateway before the store's workers, and those before its servers, whenever these were
    started."""
    last_first = directory.processes()[::-1]
    for entry in sorted(last_first, key=lambda each: each.kind in SERVER_KINDS):
        if directory.alive(entry.name):
            clean = directory.stop_process(entry.name)
            say(
                f"{entry.name} ended"
                if clean
                else f"{entry.name} did not end within {STOP_TIMEOUT_S:.0f} s and was killed"
            )
    directory.forget_all()


def supervise(directory: RunDir, config: Config, say: Say, stopping: Callable[[], bool]) -> None:
    """Watches until ``stopping`` says so. Names processes that died, and starts them again where
    the configuration asks for it: at once the first time, after a growing delay when they die again
    or do not start. Servers that never started are tried again in the same way, also without that
    setting. An error of a start is reported, and ends no other process: somebody may just be
    editing the configuration."""
    kinds = dict(process_names(config))
    down: set[str] = set()
    restarts: dict[str, Restarts] = {}
    while not stopping():
        _reap()
        for entry in directory.processes():
            alive = directory.alive(entry.name)
            if alive:
                down.discard(entry.name)
            elif entry.name not in down:
                down.add(entry.name)
                say(f"{entry.name} (pid {entry.pid}) has died; its log is {entry.log}")
                if not config.restart:
                    say(
                        f"bring it back with: cellfeed start --run-dir {directory.path}"
                        f" {entry.name}"
                    )
            if (
                not alive
                and config.restart
                and restarts.setdefault(entry.name, Restarts()).is_due(time.monotonic())
            ):
                _restart(directory, entry, say, stopping)
                restarts[entry.name].tried(time.monotonic())
        for name, reason in directory.missing().items():
            if name in kinds and restarts.setdefault(name, Restarts()).is_due(time.monotonic()):
                _try_missing(directory, name, kinds[name], reason, say, stopping)
                restarts[name].tried(time.monotonic())
        time.sleep(_LOOK_INTERVAL_S)


def stop_instance(directory: RunDir, say: Say) -> None:
    """Ends an instance from outside: through its supervisor, or process by process where there is
    none any more."""
    pid = directory.supervisor_pid()
    if pid is not None:
        with suppress(psutil.NoSuchProcess):
            supervisor = psutil.Process(pid)
            supervisor.terminate()
            deadline_s = time.monotonic() + STOP_TIMEOUT_S * 2
            # Until the process itself is gone: it gives its lock back a moment before.
            while (
                supervisor.is_running()
                and supervisor.status() != psutil.STATUS_ZOMBIE
                and time.monotonic() < deadline_s
            ):
                time.sleep(0.05)
    stop_all(directory, say)


def _restart(
    directory: RunDir, entry: ProcessEntry, say: Say, stopping: Callable[[], bool]
) -> None:
    try:
        started = start_one(directory, entry.name, entry.kind, stopping)
    except (CellfeedError, OSError) as error:
        say(f"{entry.name} is not started again yet: {error}")
    else:
        say(f"{entry.name} started again (pid {started.pid})")


def _try_missing(
    directory: RunDir, name: str, kind: str, reason: str, say: Say, stopping: Callable[[], bool]
) -> None:
    try:
        started = start_one(directory, name, kind, stopping)
    except (CellfeedError, OSError) as error:
        if str(error) != reason:
            say(f"{name} has not started yet: {error}")
        directory.say_missing(name, str(error))
    else:
        say(f"{name} started at last (pid {started.pid})")


def _reap() -> None:
    """Takes the exit status of children that ended, so that none stays behind as a zombie."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
