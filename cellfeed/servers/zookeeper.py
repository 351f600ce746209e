"""A ZooKeeper server as a local process, of one node."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cellfeed.servers.life import LOOPBACK, PROBE_TIMEOUT_S, program
from cellfeed.store.errors import Unavailable

PACKAGE: Final = "zookeeper"
JARS: Final = (Path("/usr/share/java/zookeeper.jar"), Path("/usr/share/java/slf4j-simple.jar"))
"""Where Debian has them; the first one names its further dependencies itself."""

_HEAP: Final = "-Xmx256m"
_MAIN: Final = "org.apache.zookeeper.server.ZooKeeperServerMain"
_ANSWER_BYTES_MAX: Final = 4096


@dataclass(frozen=True)
class ZooKeeperServer:
    """``directory`` (absolute) gets ``data/`` and the settings in force, ``zoo.cfg``."""

    name: str
    directory: Path
    port: int
    settings: Path
    kind: str = "zookeeper"

    @property
    def ports(self) -> Mapping[str, int]:
        return {"zookeeper": self.port}

    def prepare(self) -> None:
        (self.directory / "data").mkdir(parents=True, exist_ok=True)
        own = (
            f"dataDir={self.directory / 'data'}\n"
            f"clientPort={self.port}\n"
            f"clientPortAddress={LOOPBACK}\n"
        )
        self._configuration.write_text(
            f"{self.settings.read_text()}\n# Of this server; the last value of a name"
            f" counts.\n{own}"
        )

    def command(self) -> list[str]:
        java = program("java", self.name, "default-jre-headless")
        if missing := [str(jar) for jar in JARS if not jar.exists()]:
            raise Unavailable(
                f"{self.name}: there is no {missing[0]} on this machine; Debian has it in the"
                f" package {PACKAGE}, which `make services` installs"
            )
        return [java, _HEAP, "-cp", ":".join(map(str, JARS)), _MAIN, str(self._configuration)]

    def answers(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.port), PROBE_TIMEOUT_S) as connection:
                connection.settimeout(PROBE_TIMEOUT_S)
                connection.sendall(b"srvr")
                return connection.recv(_ANSWER_BYTES_MAX).startswith(b"Zookeeper version")
        except OSError:
            return False

    @property
    def _configuration(self) -> Path:
        return self.directory / "zoo.cfg"
