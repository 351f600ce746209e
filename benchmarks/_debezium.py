"""Debezium on Kafka Connect as a peer: one standalone worker that copies the entity tables of a
datastore's shards from MariaDB into topics of a broker.

Its jars come from Maven Central, pinned, as the broker's do; without Java, Maven or network there
is no peer (:class:`JarsUnavailable` says why).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import psutil
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks._arrivals import send_arrivals
from benchmarks._processes import STOP_TIMEOUT_S
from cellfeed.servers.kafka_jars import class_path_of
from tests.support.free_ports import free_port

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

PREFIX: Final = "debezium"
START_TIMEOUT_S: Final = 300.0
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
        """When it had copied so many, by the monotonic clock. Raises RuntimeError when it ended, or
        not in time."""
        ends_s = time.monotonic() + timeout_s
        with closing(
            Consumer({"bootstrap.servers": self.bootstrap, "group.id": "rows"})
        ) as consumer:
            while self._rows(consumer) < rows:
                if (
                    time.monotonic() > ends_s
                    or not self.process.is_running()
                    or self.process.status() == psutil.STATUS_ZOMBIE
                ):
                    raise RuntimeError(
                        f"Debezium did not copy {rows} rows:"
                        f" {self.log.read_text(errors='replace')[-2_000:]}"
                    )
                time.sleep(_LOOK_EVERY_S)
        return time.monotonic()

    def wait_streaming(self, timeout_s: float) -> None:
        """Until it follows the binary log: cells that are put from then on are copied. Raises
        RuntimeError when it ended, or not in time."""
        ends_s = time.monotonic() + timeout_s
        while "Starting streaming" not in (said := self.log.read_text(errors="replace")):
            if time.monotonic() > ends_s or self.process.status() == psutil.STATUS_ZOMBIE:
                raise RuntimeError(f"Debezium does not follow the binary log: {said[-2_000:]}")
            time.sleep(_LOOK_EVERY_S)

    def cpu_seconds(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def rss_bytes(self) -> int:
        return int(self.process.memory_info().rss)


def topics_of(shards: int, prefix: str = PREFIX) -> list[str]:
    """One for each shard's table."""
    return [f"{prefix}.trips_{shard:04d}.cell" for shard in range(shards)]


def make_topics(bootstrap: str, shards: int) -> None:
    """As Connect makes them, so that a reader may be there before it."""
    admin = AdminClient(
        {"bootstrap.servers": bootstrap}
    )  # held until it has answered: its requests end with it
    for made in admin.create_topics(
        [NewTopic(topic, 1, 1) for topic in topics_of(shards)]
    ).values():
        made.result(START_TIMEOUT_S)


def consume_changes(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    """A process's body: reads change events; tells when it has the first, then when it received
    each, by the row key of the cell in it."""
    consumer = Consumer(
        {
            "bootstrap.servers": settings["bootstrap"],
            "group.id": "debezium-latency",
            "enable.auto.commit": False,
        }
    )
    consumer.assign(
        [TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in topics_of(settings["shards"])]
    )
    send_arrivals(consumer, connection, stop, settings["records"], _row_key)
    consumer.close()


def _row_key(message: Message) -> str:
    after = json.loads(message.value() or b"")["after"]
    return str(UUID(bytes=b64decode(after["row_key"])))


@contextmanager
def debezium(
    directory: Path,
    bootstrap: str,
    port: int,
    shards: int,
    settings: Mapping[str, str],
    prefix: str = PREFIX,
) -> Iterator[Debezium]:
    """Connect with one connector on the MariaDB server at ``port`` (its root has no password).
    ``settings``: of the connector, beside those that it needs. ``prefix``: of its topics, and of
    its notes: one of another prefix knows nothing of it. Raises JarsUnavailable."""
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
        "topic.prefix": prefix,
        "database.include.list": ",".join(databases),
        "table.include.list": ",".join(f"{database}.cell" for database in databases),
        "schema.history.internal.kafka.bootstrap.servers": bootstrap,
        "schema.history.internal.kafka.topic": f"{prefix}-schema-history",
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
        "offset.storage.file.filename": str(directory / f"{prefix}.offsets"),
        "listeners": f"http://127.0.0.1:{free_port()}",
    }
    files = [
        _properties(directory / f"{prefix}-worker.properties", worker),
        _properties(directory / f"{prefix}-connector.properties", connector),
    ]
    log = directory / f"{prefix}.log"
    with log.open("wb") as out:
        command = [
            shutil.which("java") or "java",
            *_HEAP,
            "-cp",
            class_path,
            "org.apache.kafka.connect.cli.ConnectStandalone",
            *files,
        ]
        process = subprocess.Popen(
            command, stdout=out, stderr=out, cwd=directory, env={**os.environ, "LC_ALL": "C"}
        )
        try:
            yield Debezium(psutil.Process(process.pid), bootstrap, topics_of(shards, prefix), log)
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
