"""Apache Kafka itself, as a peer: one broker (KRaft) on loopback, its records those of a gateway's
topic.

Kafka's jars come as for the tests (:mod:`tests.support.kafka_jars`); without Java or Maven there
is no peer and :class:`JarsUnavailable` says why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psutil
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks._processes import STOP_TIMEOUT_S
from tests.support.free_ports import free_ports
from tests.support.kafka_jars import JarsUnavailable, kafka_class_path

__all__ = ["JarsUnavailable", "copy_topic", "kafka_broker", "kafka_broker_process"]

START_TIMEOUT_S = 60.0
COPY_TIMEOUT_S = 120.0
_HEAP = "-Xmx512m"
_BATCH_BYTES = 900_000
"""A producer's batches as large as the broker takes by default (1 MiB): the cheapest for a
reader."""


@contextmanager
def kafka_broker(directory: Path) -> Iterator[str]:
    """A broker with its files in ``directory``; gives its bootstrap address. Raises
    JarsUnavailable, or RuntimeError when it does not start."""
    with kafka_broker_process(directory) as (bootstrap, _):
        yield bootstrap


@contextmanager
def kafka_broker_process(directory: Path) -> Iterator[tuple[str, psutil.Process]]:
    """The same with the broker's process."""
    class_path = kafka_class_path()
    port, controller_port = free_ports(2)
    properties = directory / "server.properties"
    properties.write_text(
        "process.roles=broker,controller\nnode.id=1\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}\n"
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n"
        "controller.listener.names=CONTROLLER\n"
        f"controller.quorum.voters=1@127.0.0.1:{controller_port}\n"
        f"log.dirs={directory / 'logs'}\n"
        "offsets.topic.replication.factor=1\noffsets.topic.num.partitions=1\n"
        "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
        "group.initial.rebalance.delay.ms=0\nauto.create.topics.enable=false\n"
    )
    java = [shutil.which("java") or "java", _HEAP, "-cp", class_path]
    environment = {**os.environ, "LC_ALL": "C"}
    cluster_id = uuid4().hex[:22]
    with (directory / "broker.log").open("wb") as log:
        formatting = [
            *java,
            "kafka.tools.StorageTool",
            "format",
            "-t",
            cluster_id,
            "-c",
            str(properties),
        ]
        subprocess.run(
            formatting, stdout=log, stderr=log, check=True, timeout=START_TIMEOUT_S, env=environment
        )
        broker = subprocess.Popen(
            [*java, "kafka.Kafka", str(properties)], stdout=log, stderr=log, env=environment
        )
        try:
            _await_broker(f"127.0.0.1:{port}", broker, directory / "broker.log")
            yield f"127.0.0.1:{port}", psutil.Process(broker.pid)
        finally:
            broker.terminate()
            try:
                broker.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                broker.kill()
                broker.wait()


def copy_topic(source: str, target: str, topic: str, records: int) -> None:
    """Makes ``topic`` on ``target`` with the partitions, keys, values and timestamps that it has on
    ``source``, uncompressed as they are there.

    Raises RuntimeError when not all ``records`` were taken within ``COPY_TIMEOUT_S``.
    """
    consumer = Consumer(
        {"bootstrap.servers": source, "group.id": "copy", "enable.auto.commit": False}
    )
    producer = Producer(
        {
            "bootstrap.servers": target,
            "linger.ms": 100,
            "batch.size": _BATCH_BYTES,
            "queue.buffering.max.messages": 100_000,
        }
    )
    try:
        partitions = list(
            consumer.list_topics(topic, timeout=START_TIMEOUT_S).topics[topic].partitions
        )
        admin = AdminClient(
            {"bootstrap.servers": target}
        )  # held until it has answered: its requests end with it
        admin.create_topics([NewTopic(topic, len(partitions), 1)])[topic].result(START_TIMEOUT_S)
        consumer.assign(
            [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions]
        )
        taken, ends = 0, time.monotonic() + COPY_TIMEOUT_S
        while taken < records and time.monotonic() < ends:
            for message in consumer.consume(5_000, timeout=1.0):
                _produce(
                    producer,
                    topic,
                    message.partition() or 0,
                    message.key(),
                    message.value(),
                    message.timestamp()[1],
                )
                taken += 1
        if taken < records or producer.flush(COPY_TIMEOUT_S):
            raise RuntimeError(
                f"only {taken} of {records} records were copied within {COPY_TIMEOUT_S} s"
            )
    finally:
        consumer.close()


def _produce(
    producer: Producer,
    topic: str,
    partition: int,
    key: bytes | None,
    value: bytes | None,
    timestamp_ms: int,
) -> None:
    while True:
        try:
            producer.produce(topic, value, key, partition, timestamp=timestamp_ms)
        except BufferError:  # the queue is full: sent records leave it
            producer.poll(0.05)
        else:
            return


def _await_broker(bootstrap: str, broker: subprocess.Popen[bytes], log: Path) -> None:
    ends = time.monotonic() + START_TIMEOUT_S
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    while True:
        try:
            admin.list_topics(timeout=1.0)
        except KafkaException:
            if broker.poll() is not None or time.monotonic() > ends:
                raise RuntimeError(
                    f"the broker did not start: {log.read_text(errors='replace')[-600:]}"
                ) from None
        else:
            return
