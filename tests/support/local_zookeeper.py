"""Real ZooKeeper servers as local processes for tests, from Debian's jars, on loopback: one server,
ready in half a second, or an ensemble of three, in two."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from cellfeed.servers.zookeeper import JARS, ZooKeeperServer
from tests.support.free_ports import free_port, free_ports
from tests.support.waiting import wait_until

START_TIMEOUT_S: Final = 60.0
"""Three JVMs that start beside other tests compute for several seconds each."""

SETTINGS: Final = {
    "tickTime": "200",  # a session lasts at least two ticks: tests wait for expiry
    "maxSessionTimeout": "60000",
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "srvr",
    "maxClientCnxns": "0",
}
_ENSEMBLE_SETTINGS: Final = {"initLimit": "50", "syncLimit": "10"}
"""In ticks: a follower that starts on a busy machine is waited for, and a leader that hangs is
given up after two seconds."""

_ELECTION: Final = ("-Dzookeeper.fastleader.maxNotificationInterval=1000",)
"""A server repeats its vote at least once a second. By itself it doubles the pause up to a minute,
and a vote is lost when the other server does not listen yet."""

_ENSEMBLE_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_SERVERS: Final = 3
_PROBE_TIMEOUT_S: Final = 2.0
_JAVA_OPTIONS: Final = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


def why_not() -> str | None:
    """Why no ZooKeeper can be started here; None when it can."""
    if shutil.which("java") is None:
        return "no Java on this machine: `make services` installs it on Debian"
    if missing := [jar for jar in JARS if not jar.exists()]:
        return f"no {missing[0]} on this machine: `make services` installs it on Debian"
    return None


@dataclass
class ZooKeeper:
    """One server. ``start`` returns when it answers; ``kill`` is kill -9 and waits until the pid is
    gone. ``settings``: further lines of zoo.cfg. ``number``: its own in an ensemble, where it
    answers only as long as there is a majority."""

    directory: Path
    port: int = field(default_factory=free_port)
    settings: dict[str, str] = field(default_factory=dict)
    java_options: tuple[str, ...] = ()
    number: int | None = None
    process: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"zookeeper://{self.hosts}"

    def start(self) -> None:
        self.launch()
        self.wait_until_it_answers()

    def launch(self) -> None:
        """Starts it and does not wait."""
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = {**SETTINGS, **self.settings}
        (self.directory / "settings.cfg").write_text(
            "".join(f"{key}={value}\n" for key, value in settings.items())
        )
        self._server.prepare()
        java, *arguments = self._server.command()
        if self.number is not None:
            (self.directory / "data" / "myid").write_text(str(self.number))
            arguments[-2] = _ENSEMBLE_MAIN
        with (self.directory / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [java, *_JAVA_OPTIONS, *self.java_options, *arguments],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_until_it_answers(self) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self._server.answers():
            if not self.is_running() or time.monotonic() > deadline_s:
                tail = (self.directory / "server.log").read_text(errors="replace")[-2000:]
                how = f"not within {START_TIMEOUT_S} s" if self.is_running() else "it ended"
                raise RuntimeError(f"ZooKeeper did not start, {how}:\n{tail}")
            time.sleep(0.02)

    @property
    def _server(self) -> ZooKeeperServer:
        return ZooKeeperServer(
            "zookeeper", self.directory, self.port, self.directory / "settings.cfg"
        )

    def mode(self) -> str:
        """``standalone``, ``leader`` or ``follower``; empty when it does not answer or belongs to
        no majority."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), _PROBE_TIMEOUT_S) as connection:
                connection.settimeout(_PROBE_TIMEOUT_S)
                connection.sendall(b"srvr")
                answer = b"".join(iter(lambda: connection.recv(4096), b""))
        except OSError:
            return ""
        found = re.search(rb"^Mode: (\w+)$", answer, re.MULTILINE)
        return found[1].decode() if found else ""

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def pause(self) -> None:
        """SIGSTOP, and waits until it has stopped: on a busy machine it may answer a call after the
        signal was sent."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        stopping = psutil.Process(self.process.pid)
        wait_until(
            lambda: stopping.status() == psutil.STATUS_STOPPED,
            "the server has stopped",
        )

    def resume(self) -> None:
        """SIGCONT; nothing when it does not run."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(10)

    def copy(self, to: Path) -> None:
        """A copy of its data directory, as an operator's backup has it: of a server that is stopped
        for that, and started again."""
        self.kill()
        shutil.copytree(self.directory / "data", to)
        self.start()

    def go_back(self, to: Path) -> None:
        """A stopped server's data directory is an earlier copy from now on."""
        self.wipe()
        shutil.copytree(to, self.directory / "data")

    def wipe(self) -> None:
        """Deletes the data of a stopped server: it starts empty."""
        assert not self.is_running()
        shutil.rmtree(self.directory / "data", ignore_errors=True)


def part_of_an_ensemble(
    directory: Path, port: int, addresses: Sequence[str], number: int
) -> ZooKeeper:
    """The server of that number, from 1, in an ensemble with one server at each address. Clients
    reach it on the loopback of its host."""
    settings = {
        **_ENSEMBLE_SETTINGS,
        **{f"server.{n}": f"{each}:12888:13888" for n, each in enumerate(addresses, 1)},
    }
    return ZooKeeper(directory, port, settings, _ELECTION, number)


class Ensemble:
    """Three servers; any two of them are a majority."""

    def __init__(self, directory: Path) -> None:
        numbers = range(1, _SERVERS + 1)
        ports = iter(free_ports(3 * _SERVERS))
        settings = {
            **_ENSEMBLE_SETTINGS,
            **{f"server.{number}": f"127.0.0.1:{next(ports)}:{next(ports)}" for number in numbers},
        }
        self.servers = [
            ZooKeeper(directory / str(number), next(ports), settings, _ELECTION, number)
            for number in numbers
        ]

    @property
    def url(self) -> str:
        return f"zookeeper://{','.join(server.hosts for server in self.servers)}"

    def start(self) -> None:
        """Returns when all three answer."""
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.wait_until_it_answers()

    def leader(self) -> ZooKeeper | None:
        """None during an election."""
        return next((server for server in self.servers if server.mode() == "leader"), None)

    def kill(self) -> None:
        for server in self.servers:
            server.resume()
            server.kill()
