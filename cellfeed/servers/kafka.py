"""A Kafka broker as a local process: one node that is its own controller (KRaft).

Debian has no package of it: its jars come from Maven Central (:mod:`cellfeed.servers.kafka_jars`,
which ``docker/install-services`` runs).
"""

from __future__ import annotations

import shutil
import socket
import struct
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

from cellfeed.servers.kafka_jars import KAFKA_VERSION, jars_directory
from cellfeed.servers.life import LOOPBACK, PROBE_TIMEOUT_S, program, run_to_end
from cellfeed.store.errors import Unavailable

_HEAP: Final = "-Xmx512m"
_API_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""A whole request: its length, key 18 in version 0, correlation id 1, no client id. A broker
answers it once it takes requests at all."""

_ANSWER_HEAD: Final = struct.Struct(">iih")


@dataclass(frozen=True)
class KafkaServer:
    """``directory`` (absolute) gets ``data/`` and the settings in force, ``server.properties``."""

    name: str
    directory: Path
    port: int
    controller_port: int
    settings: Path
    kind: str = "kafka"
    version: str = KAFKA_VERSION

    @property
    def ports(self) -> Mapping[str, int]:
        return {"kafka": self.port, "controller": self.controller_port}

    def prepare(self) -> None:
        data = self.directory / "data"
        self.directory.mkdir(parents=True, exist_ok=True)
        own = (
            f"listeners=PLAINTEXT://{LOOPBACK}:{self.port},"
            f"CONTROLLER://{LOOPBACK}:{self.controller_port}\n"
            f"advertised.listeners=PLAINTEXT://{LOOPBACK}:{self.port}\n"
            f"controller.quorum.voters=1@{LOOPBACK}:{self.controller_port}\n"
            f"log.dirs={data}\n"
        )
        self._configuration.write_text(
            f"{self.settings.read_text()}\n# Of this server; the last value of a name"
            f" counts.\n{own}"
        )
        formatted = self.directory / "formatted"
        if formatted.exists():
            return
        # The mark comes last: a start that was killed leaves a folder that is formatted again.
        shutil.rmtree(data, ignore_errors=True)
        command = [
            *self._java(),
            "kafka.tools.StorageTool",
            "format",
            "--cluster-id",
            new_cluster_id(),
            "--config",
            str(self._configuration),
        ]
        run_to_end(command, f"{self.name}: formatting {data}")
        formatted.touch()

    def command(self) -> list[str]:
        return [*self._java(), "kafka.Kafka", str(self._configuration)]

    def answers(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.port), PROBE_TIMEOUT_S) as connection:
                connection.settimeout(PROBE_TIMEOUT_S)
                connection.sendall(_API_VERSIONS)
                head = connection.recv(_ANSWER_HEAD.size, socket.MSG_WAITALL)
        except OSError:
            return False
        return len(head) == _ANSWER_HEAD.size and _ANSWER_HEAD.unpack(head)[1:] == (1, 0)

    def _java(self) -> list[str]:
        java, jars = (
            program("java", self.name, "default-jre-headless"),
            jars_directory(self.version),
        )
        if not jars.is_dir():
            raise Unavailable(
                f"{self.name}: Kafka's jars are not in {jars}; `make services` fetches them (python"
                f" -m cellfeed.servers.kafka_jars {self.version})"
            )
        return [java, _HEAP, "-cp", f"{jars}/*"]

    @property
    def _configuration(self) -> Path:
        return self.directory / "server.properties"


def new_cluster_id() -> str:
    """A random UUID as Kafka writes them. Never one that begins with a dash, one in 64: Kafka's own
    tool takes it for an option."""
    while (text := urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")).startswith("-"):
        continue
    return text
