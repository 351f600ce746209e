"""The life of a local server of any kind: made ready once, started, awaited, recorded like every
process of the instance.

The server is the recorded process itself, without a process of ours between: ``kill -9`` of the
recorded pid is the server's death, SIGTERM its gentle end
(:meth:`cellfeed.run_dir.RunDir.stop_process`), and the death of anything else is not felt. Each has
a session and so a process group of its own.

A start that is killed
    while its files are made      they are made in another place, or have a mark that is written
                                  last: the next start makes them again
    between start and record      the server runs, but nobody knows it: the next start refuses and
                                  names the process that holds the port
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

import psutil

from cellfeed.processes import child
from cellfeed.processes.child import await_served, starting
from cellfeed.processes.reports import ProcessEntry
from cellfeed.run_dir import RunDir
from cellfeed.store.errors import Unavailable

PREPARE_TIMEOUT_S: Final = 60.0
"""How long making a server's files may take; MariaDB needs 1 s, Kafka 3 s."""

PROBE_TIMEOUT_S: Final = 2.0
"""Longest wait for the answer to one question whether a server is there. Without a bound a server
that is starting can hold the asker for ever."""

PORT_WAIT_S: Final = 5.0
"""How long a port may still be held by nobody that can be named: a server that was killed has it
until its last thread has ended."""

LOOPBACK: Final = "127.0.0.1"
_ENVIRONMENT: Final = {"LC_ALL": "C"}
_PROBE_INTERVAL_S: Final = 0.05
_LOG_TAIL_CHARACTERS: Final = 1500
_SYSTEM_PROGRAMS: Final = "/usr/local/sbin:/usr/sbin:/sbin"
"""Where servers are installed, beyond the search path of an ordinary user."""


class LocalServer(Protocol):
    """One server, not necessarily running."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def ports(self) -> Mapping[str, int]:
        """The ports that it listens on, by purpose."""
        ...

    def prepare(self) -> None:
        """Makes its files unless they are there. Raises Unavailable: a program is missing, a folder
        cannot be used."""
        ...

    def command(self) -> list[str]:
        """The command that runs it in the foreground, once it is prepared. Raises Unavailable when
        a program is missing."""
        ...

    def answers(self) -> bool:
        """Whether it, and not something else on its port, serves. Returns within some
        ``PROBE_TIMEOUT_S``. Raises Unavailable when it never will."""
        ...


def start_server(
    server: LocalServer, directory: RunDir, given_up: Callable[[], bool] = lambda: False
) -> ProcessEntry:
    """Starts a server and records it once it answers. Raises Unavailable when it does not, or when
    ``given_up`` says that nobody wants it."""
    check_ports_free(server)
    server.prepare()
    log = directory.log(server.name)
    with starting(lambda: launch(server, log)) as process:
        await_answer(server, process, log, given_up)
        entry = ProcessEntry(server.name, server.kind, process.pid, dict(server.ports), str(log))
        directory.say_ready(server.name, entry.ports, process.pid)
        directory.record(entry)
    # The handle is dropped: from here on the system reports whether the process is alive. A handle
    # dropped while its process runs would complain.
    process.returncode = 0
    return entry


def launch(server: LocalServer, log_path: Path) -> subprocess.Popen[bytes]:
    """The started server; it may not serve yet."""
    return child.launch(server.command(), _ENVIRONMENT, log=log_path)


def await_answer(
    server: LocalServer,
    process: subprocess.Popen[bytes],
    log_path: Path,
    given_up: Callable[[], bool] = lambda: False,
) -> None:
    """Returns once a launched server answers. Raises Unavailable with the end of its log when it
    ends before, or takes too long."""

    def answered() -> bool | None:
        return (server.answers() and process.poll() is None) or None

    await_served(server.name, process, log_path, answered, given_up, interval_s=_PROBE_INTERVAL_S)


def check_ports_free(server: LocalServer) -> None:
    """Raises Unavailable when somebody listens on a port of the server already: it could be taken
    for the server itself."""
    deadline_s = time.monotonic() + PORT_WAIT_S
    for port in server.ports.values():
        while (reason := _why_not_free(port)) is not None:
            listener = _listener(port)
            if listener is not None or time.monotonic() > deadline_s:
                raise Unavailable(
                    f"{server.name}: port {port} cannot be"
                    f" had{f', {listener} listens there' if listener else ''}: {reason}"
                )
            time.sleep(_PROBE_INTERVAL_S)


def _why_not_free(port: int) -> str | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            return error.strerror
    return None


def run_in_place(server: LocalServer, directory: RunDir) -> None:
    """Becomes the server (for other supervisors than ours, which have their own ways to see that it
    serves): does not return. Raises Unavailable."""
    check_ports_free(server)
    server.prepare()
    command = server.command()
    directory.say_ready(server.name, dict(server.ports))
    os.execve(command[0], command, {**os.environ, **_ENVIRONMENT})  # noqa: S606  # the command is ours


def program(name: str, server: str, package: str) -> str:
    """The path of an installed program. Raises Unavailable naming the package that has it."""
    found = shutil.which(name) or shutil.which(name, path=_SYSTEM_PROGRAMS)
    if found is None:
        raise Unavailable(
            f"{server}: there is no {name} on this machine; Debian has it in the package {package},"
            " which `make services` installs"
        )
    return found


def run_to_end(command: list[str], what: str, given: str = "") -> None:
    """Runs a command that makes a server's files, with ``given`` as its input. Raises Unavailable
    with the end of its output."""
    try:
        subprocess.run(
            command,
            input=given,
            check=True,
            capture_output=True,
            text=True,
            timeout=PREPARE_TIMEOUT_S,
        )
    except subprocess.CalledProcessError as error:
        raise Unavailable(
            f"{what} failed:\n{(error.stdout + error.stderr).strip()[-_LOG_TAIL_CHARACTERS:]}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{what} did not end within {PREPARE_TIMEOUT_S:.0f} s") from error


def _listener(port: int) -> str | None:
    """The process that listens there, where the system reports it."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        return None
    for each in connections:
        if (
            each.status == psutil.CONN_LISTEN
            and each.laddr
            and each.laddr.port == port
            and each.pid is not None
        ):
            return f"process {each.pid} ({psutil.Process(each.pid).name()})"
    return None
