"""Where the servers of integration tests come from: containers where a Docker engine of this
machine answers, local processes elsewhere. ``CELLFEED_TEST_SERVERS`` decides otherwise: ``local``,
or ``containers``, where a missing engine is an error.

This is for tests that only need some server. A test that kills, pauses or cuts servers, or changes
their files, starts local ones of its own.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pymysql
import pytest

from cellfeed.servers.kafka_jars import KAFKA_VERSION
from tests.support import local_kafka, local_mariadb, local_zookeeper
from tests.support.free_ports import free_port
from tests.support.local_kafka import Kafka
from tests.support.local_mariadb import MariaDB
from tests.support.local_zookeeper import ZooKeeper
from tests.support.waiting import wait_until

VARIABLE: Final = "CELLFEED_TEST_SERVERS"
DEFAULT_ENGINE: Final = "unix:///var/run/docker.sock"
ENGINE_TIMEOUT_S: Final = 5.0
START_TIMEOUT_S: Final = 180.0
"""Longest wait for a container's server, in seconds: its image may have to come first."""

IMAGES: Final = {
    "mariadb": "mariadb:10.11",
    "zookeeper": "zookeeper:3.8",
    "kafka": f"apache/kafka:{KAFKA_VERSION}",
}
"""Those of ``docker/compose.yaml``."""


@dataclass(frozen=True)
class ServerSource:
    """``kind``: ``local`` or ``containers``; ``because``: why."""

    kind: str
    because: str

    def __str__(self) -> str:
        return f"servers: {self.kind} ({self.because})"

    @contextmanager
    def mariadb(self) -> Iterator[MariaDB]:
        """A running server with a ``root`` without a password. Skips where none can be had."""
        if self.kind == "local":
            if reason := local_mariadb.why_not():
                pytest.skip(reason)
            with local_mariadb.running() as local:
                yield local
            return
        server = MariaDB(Path(os.devnull))
        with _container(
            "mariadb",
            {3306: server.port},
            {"MARIADB_ALLOW_EMPTY_ROOT_PASSWORD": "1", "MARIADB_INITDB_SKIP_TZINFO": "1"},
            command=list(local_mariadb.SMALL),
            volumes=[(str(local_mariadb.SETTINGS), "/etc/mysql/conf.d/cellfeed.cnf", "ro")],
        ):
            _await(lambda: bool(server.sql("SELECT 1")), "MariaDB")
            yield server

    @contextmanager
    def zookeeper(self) -> Iterator[ZooKeeper]:
        """A running server. Skips where none can be had."""
        if self.kind == "local":
            if reason := local_zookeeper.why_not():
                pytest.skip(reason)
            directory = Path(tempfile.mkdtemp(prefix="cellfeed-zookeeper-"))
            local = ZooKeeper(directory)
            try:
                local.start()
                yield local
            finally:
                local.kill()
                shutil.rmtree(directory)
            return
        port = free_port()
        extra = "\n".join(f"{key}={value}" for key, value in local_zookeeper.SETTINGS.items())
        with _container("zookeeper", {2181: port}, {"ZOO_CFG_EXTRA": extra}) as container:
            server = _ContainerZooKeeper(Path(os.devnull), port, container=container)
            _await(lambda: bool(server.mode()), "ZooKeeper")
            yield server

    @contextmanager
    def kafka(self) -> Iterator[Kafka]:
        """A running broker. Skips where none can be had."""
        if self.kind == "local":
            with local_kafka.started_kafka(KAFKA_VERSION) as local:
                yield local
            return
        port = free_port()
        settings = {
            "NODE_ID": "1",
            "PROCESS_ROLES": "broker,controller",
            "LISTENERS": "PLAINTEXT://:9092,CONTROLLER://:9093",
            "ADVERTISED_LISTENERS": f"PLAINTEXT://127.0.0.1:{port}",
            "CONTROLLER_LISTENER_NAMES": "CONTROLLER",
            "LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
            "OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
            "TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
            "TRANSACTION_STATE_LOG_MIN_ISR": "1",
            "GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        }
        environment = {f"KAFKA_{name}": value for name, value in settings.items()}
        with _container("kafka", {9092: port}, environment):
            from confluent_kafka import KafkaException  # no other server needs it
            from confluent_kafka.admin import AdminClient

            client = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})

            def answers() -> bool:
                with suppress(KafkaException):
                    return bool(client.list_topics(timeout=5).brokers)
                return False

            _await(answers, "Kafka")
            yield Kafka(Path(os.devnull), (port, 0))


@dataclass
class _ContainerZooKeeper(ZooKeeper):
    container: Any = None

    def pause(self) -> None:
        self.container.get_wrapped_container().pause()

    def resume(self) -> None:
        self.container.get_wrapped_container().unpause()


@functools.cache
def server_source() -> ServerSource:
    """The source of this run. Raises RuntimeError where containers are asked for and no engine
    answers."""
    return choose(os.environ)


def choose(environment: Any) -> ServerSource:
    """As :func:`server_source`, of an environment."""
    wanted = environment.get(VARIABLE, "auto")
    if wanted not in ("auto", "local", "containers"):
        raise RuntimeError(f"{VARIABLE} is {wanted!r}: it may be auto, local or containers")
    if wanted == "local":
        return ServerSource("local", f"{VARIABLE}=local")
    address = environment.get("DOCKER_HOST", DEFAULT_ENGINE)
    reason = why_no_engine(address)
    if reason is None:
        return ServerSource("containers", f"a Docker engine answers at {address}")
    if wanted == "containers":
        raise RuntimeError(f"{VARIABLE}=containers, but {reason}")
    return ServerSource("local", reason)


def why_no_engine(address: str) -> str | None:
    """Why no Docker engine of this machine can be used; None when one answers."""
    if not address.startswith("unix://"):
        return f"the Docker engine {address} may be on another host, where ports are not loopback's"
    if not Path(address.removeprefix("unix://")).exists():
        return f"there is no Docker engine at {address}"
    # Most runs have no engine, and do not need it. mypy takes the folder `docker/` for the package.
    from docker.client import DockerClient  # type: ignore[import-not-found]
    from docker.errors import DockerException  # type: ignore[import-not-found]

    try:
        # First by itself: the library leaves a socket open that nobody answers.
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(ENGINE_TIMEOUT_S)
            probe.connect(address.removeprefix("unix://"))
        client = DockerClient(base_url=address, version="1.41", timeout=ENGINE_TIMEOUT_S)
        try:
            client.ping()
        finally:
            client.close()
    except (DockerException, OSError) as error:
        return f"the Docker engine at {address} does not answer: {error}"
    return None


@contextmanager
def _container(
    name: str,
    ports: dict[int, int],
    environment: dict[str, str],
    *,
    command: list[str] | None = None,
    volumes: list[tuple[str, str, str]] | None = None,
) -> Iterator[Any]:
    from testcontainers.core.container import DockerContainer  # as docker above

    container = DockerContainer(IMAGES[name], env=environment, volumes=volumes)
    for inside, outside in ports.items():
        container.ports[f"{inside}/tcp"] = ("127.0.0.1", outside)  # type: ignore[assignment]
    if command:
        container.with_command(command)
    try:
        with container:
            yield container
    finally:
        container.get_docker_client().client.close()


def _await(answers: Callable[[], bool], what: str) -> None:
    def is_there() -> bool:
        with suppress(OSError, pymysql.MySQLError):
            return answers()
        return False

    wait_until(is_there, f"{what} answers in its container", START_TIMEOUT_S)
