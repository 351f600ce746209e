"""Debezium on Kafka Connect as a peer: one standalone worker that copies the entity tables of a datastore's shards from MariaDB into topics of a broker.

Its jars come from Maven Central, pinned, as the broker's do; without Java, Maven or network there is no peer (:class:`JarsUnavailable` says why).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from confluent_kafka import Consumer, KafkaException, TopicPartition

from benchmarks._processes import STOP_TIMEOUT_S
from cellfeed.servers.kafka_jars import class_path_of
from tests.services.free_ports import free_port

CONNECT_VERSION: Final = "3.9.2"
DEBEZIUM_VERSION: Final = "3.3.0.Final"
_JARS: Final = (
    f"org.apache.kafka:connect-runtime:{CONNECT_VERSION}",
    f"org.apache.kafka:connect-json:{CONNECT_VERSION}",
    f"io.debezium:debezium-connector-mariadb:{DEBEZIUM_VERSION}",
    "org.slf4j:slf4j-simple:1.7.36",
)
_HEAP: Final = ("-Xms256m", "-Xmx2g")
"""As Kafka's own script for Connect has it."""

_PREFIX: Final = "debezium"
START_TIMEOUT_S: Final = 120.0
"""From starting the process to its first row."""

_LOOK_EVERY_S: Final = 0.05


@dataclass
class Debezium:
    """A running one. Its topics have one partition each, a topic for each shard."""

    process: psutil.Process
    bootstrap: str
    topics: list[str]
    log: Path

    def _rows(self, consumer: Consumer) -> int:
        """Records that its topics have now; 0 while one of them is being made."""
        known = consumer.list_topics(timeout=10).topics
        there = [TopicPartition(topic, 0) for topic in self.topics if topic in known]
        try:
            return sum(consumer.get_watermark_offsets(place, timeout=10)[1] for place in there)
        except KafkaException:
            return 0

    def wait_rows(self, rows: int, timeout_s: float) -> float:
        """When it had copied so many, by the monotonic clock. Raises RuntimeError when it ended, or not in time."""
        ends_s = time.monotonic() + timeout_s
        with closing(Consumer({"bootstrap.servers": self.bootstrap, "group.id": "rows"})) as consumer:
            while self._rows(consumer) < rows:
                if time.monotonic() > ends_s or not self.process.is_running() or self.process.status() == psutil.STATUS_ZOMBIE:
                    raise RuntimeError(f"Debezium did not copy {rows} rows: {self.log.read_text(errors='replace')[-2_000:]}")
                time.sleep(_LOOK_EVERY_S)
        return time.monotonic()

    def cpu_seconds(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def rss_bytes(self) -> int:
        return int(self.process.memory_info().rss)


@contextmanager
def debezium(directory: Path, bootstrap: str, port: int, shards: int, settings: Mapping[str, str]) -> Iterator[Debezium]:
    """Connect with one connector on the MariaDB server at ``port`` (its root has no password). ``settings``: of the connector, beside those that it needs.
    Raises JarsUnavailable."""
    class_path = class_path_of(f"debezium-{DEBEZIUM_VERSION}-connect-{CONNECT_VERSION}", _JARS)
    databases = [f"trips_{shard:04d}" for shard in range(shards)]
    connector = {
        "name": "trips",
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
        "tasks.max": "1",
        "database.hostname": "127.0.0.1",
        "database.port": str(port),
        "database.user": "root",
        "database.password": "",
        "database.server.id": "9001",
        "topic.prefix": _PREFIX,
        "database.include.list": ",".join(databases),
        "table.include.list": ",".join(f"{database}.cell" for database in databases),
        "schema.history.internal.kafka.bootstrap.servers": bootstrap,
        "schema.history.internal.kafka.topic": "debezium-schema-history",
        "topic.creation.default.replication.factor": "1",
        "topic.creation.default.partitions": "1",
        **settings,
    }
    worker = {
        "bootstrap.servers": bootstrap,
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        "offset.storage.file.filename": str(directory / "connect.offsets"),
        "listeners": f"http://127.0.0.1:{free_port()}",
    }
    files = [_properties(directory / "worker.properties", worker), _properties(directory / "connector.properties", connector)]
    log = directory / "connect.log"
    with log.open("wb") as out:
        command = [shutil.which("java") or "java", *_HEAP, "-cp", class_path, "org.apache.kafka.connect.cli.ConnectStandalone", *files]
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=directory, env={**os.environ, "LC_ALL": "C"})
        try:
            yield Debezium(psutil.Process(process.pid), bootstrap, [f"{_PREFIX}.{database}.cell" for database in databases], log)
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _properties(path: Path, settings: Mapping[str, str]) -> str:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(path)
