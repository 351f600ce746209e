"""Real ZooKeeper servers as local processes for tests, from Debian's jars: one server, ready in half a second, on loopback."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cellfeed.servers.zookeeper import JARS, ZooKeeperServer
from tests.services.local_mariadb import free_port

START_TIMEOUT_S: Final = 30.0
_SETTINGS: Final = {
    "tickTime": "200",  # a session lasts at least two ticks: tests wait for expiry
    "maxSessionTimeout": "60000",
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "srvr",
    "maxClientCnxns": "0",
}
_JAVA_OPTIONS: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")


def why_not() -> str | None:
    """Why no ZooKeeper can be started here; None when it can."""
    if shutil.which("java") is None:
        return "no Java on this machine: `make services` installs it on Debian"
    if missing := [jar for jar in JARS if not jar.exists()]:
        return f"no {missing[0]} on this machine: `make services` installs it on Debian"
    return None


@dataclass
class ZooKeeper:
    """One server. ``start`` returns when it answers; ``kill`` is kill -9 and waits until the pid is gone. ``settings``: further lines of zoo.cfg."""

    directory: Path
    port: int = field(default_factory=free_port)
    settings: dict[str, str] = field(default_factory=dict)
    java_options: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"zookeeper://{self.hosts}"

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = {**_SETTINGS, **self.settings}
        (self.directory / "settings.cfg").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        server = ZooKeeperServer("zookeeper", self.directory, self.port, self.directory / "settings.cfg")
        server.prepare()
        java, *arguments = server.command()
        with (self.directory / "server.log").open("ab") as log:
            self.process = subprocess.Popen([java, *_JAVA_OPTIONS, *self.java_options, *arguments], stdout=log, stderr=log, start_new_session=True)
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not server.answers():
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                tail = (self.directory / "server.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"ZooKeeper did not start:\n{tail}")
            time.sleep(0.02)

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def pause(self) -> None:
        """SIGSTOP."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT; nothing when it does not run."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(10)

    def wipe(self) -> None:
        """What a stopped server holds is gone: it starts empty."""
        assert not self.is_running()
        shutil.rmtree(self.directory / "data", ignore_errors=True)
