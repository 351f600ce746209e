"""A real Kafka broker as a local process for tests, from the jars of Maven Central, on loopback:
one node that is its own controller, ready in some seconds. Its data directory is formatted once in
a process, which takes a Java of its own, and copied for each broker."""

from __future__ import annotations

import atexit
import functools
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
import pytest

from cellfeed.servers.kafka import KafkaServer, new_cluster_id
from cellfeed.servers.kafka_jars import KAFKA_VERSION, JarsUnavailable, kafka_class_path
from cellfeed.servers.life import await_answer, launch
from tests.support.free_ports import free_ports

SETTINGS: Final = Path(__file__).parents[2] / "cellfeed" / "data" / "kafka.properties"
STOP_TIMEOUT_S: Final = 30.0


def why_not(version: str = KAFKA_VERSION) -> str | None:
    """Why no Kafka can be started here; None when it can. Fetches its jars where they are not there
    yet."""
    try:
        kafka_class_path(version)
    except JarsUnavailable as reason:
        return f"no Kafka: {reason}"
    return None


@functools.cache
def _formatted_data_directory(version: str) -> Path:
    """A formatted data directory, to be copied. Gone when the process ends."""
    parent = Path(tempfile.mkdtemp(prefix="cellfeed-kafka-formatted-"))
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    port, controller_port = free_ports(2)
    KafkaServer("formatted", parent, port, controller_port, SETTINGS, version=version).prepare()
    return parent / "data"


def _copy_formatted(server: KafkaServer) -> None:
    """Formats a new broker; its ids are its own, as those of every cluster and directory are."""
    mark = server.directory / "formatted"
    if mark.exists():
        return
    data = server.directory / "data"
    shutil.rmtree(data, ignore_errors=True)
    shutil.copytree(_formatted_data_directory(server.version), data)
    properties = data / "meta.properties"
    properties.write_text(
        re.sub(
            r"^(cluster|directory)\.id=.*$",
            lambda found: f"{found[1]}.id={new_cluster_id()}",
            properties.read_text(),
            flags=re.MULTILINE,
        )
    )
    mark.touch()


@dataclass
class Kafka:
    """One broker. ``start`` returns when it answers; ``kill`` is kill -9 and waits until the pid is
    gone. ``advertised``: a port in front of it (a proxy).

    ``links``: more listeners, by a name in capitals, each with its own port and one in front of it:
    a client that enters by the one in front is sent there again.
    """

    directory: Path
    ports: tuple[int, int] = field(
        default_factory=lambda: (lambda found: (found[0], found[1]))(free_ports(2))
    )
    advertised: int | None = None
    version: str = KAFKA_VERSION
    links: dict[str, tuple[int, int]] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.advertised or self.ports[0]}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        server = KafkaServer(
            "kafka", self.directory / "kafka", *self.ports, self._settings(), version=self.version
        )
        _copy_formatted(server)
        server.prepare()
        if self.advertised is not None or self.links:
            self._advertise(self.directory / "kafka" / "server.properties")
        log = self.directory / "kafka.log"
        self.process = launch(server, log)
        await_answer(server, self.process, log)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_TIMEOUT_S)
            self.process = None

    def stop(self) -> None:
        """As an operator does."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
            self.process = None

    def pause(self) -> None:
        """SIGSTOP; returns when it stands."""
        process = psutil.Process(self.pid)
        process.suspend()
        while process.status() != psutil.STATUS_STOPPED:
            time.sleep(0.005)

    def resume(self) -> None:
        psutil.Process(self.pid).resume()

    def _settings(self) -> Path:
        """Tests wait for the broker: it looks for transactions to abort every second, and for
        segments to delete or compact twice a second."""
        path = self.directory / "kafka.properties"
        waits = {
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
            "log.initial.task.delay.ms": 500,
        }
        waits |= {"log.retention.check.interval.ms": 500, "log.cleaner.backoff.ms": 500}
        path.write_text(
            SETTINGS.read_text() + "".join(f"{name}={value}\n" for name, value in waits.items())
        )
        return path

    def _advertise(self, path: Path) -> None:
        own, controller = self.ports
        listeners = [f"PLAINTEXT://127.0.0.1:{own}", f"CONTROLLER://127.0.0.1:{controller}"]
        advertised = [f"PLAINTEXT://{self.bootstrap}"]
        for name, (port, front) in self.links.items():
            listeners.append(f"{name}://127.0.0.1:{port}")
            advertised.append(f"{name}://127.0.0.1:{front}")
        protocols = [f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "CONTROLLER", *self.links)]
        lines = {
            "listeners": listeners,
            "advertised.listeners": advertised,
            "listener.security.protocol.map": protocols,
        }
        path.write_text(
            path.read_text()
            + "".join(f"{name}={','.join(values)}\n" for name, values in lines.items())
        )


@contextmanager
def started_kafka(version: str = KAFKA_VERSION) -> Iterator[Kafka]:
    """A broker that runs, with its files in a temporary folder. Skips the test, with the reason,
    where none can be had."""
    if reason := why_not(version):
        pytest.skip(reason)
    directory = Path(tempfile.mkdtemp(prefix="cellfeed-kafka-"))
    broker = Kafka(directory, version=version)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()
        shutil.rmtree(directory)
