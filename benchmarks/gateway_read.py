"""The gateway read whole by C clients: for the first time (every block encoded), and again (kept
blocks), beside Apache Kafka with the same records.

``CELLS`` taxi cells in 16 shards of one embedded datastore, written once. Each run starts a gateway
in a process of its own and reads topic ``trips`` from it; each reader a new process and a new
consumer: once for ``first read``, then ``KEPT_READS`` times for ``kept read``, in turns with a real
broker (one node, loopback) that holds the same records uncompressed. So once with confluent-kafka's
``consume``, once with ``kcat`` where it is installed.

confluent-kafka: partitions are assigned, records come in calls of ``CONSUME_RECORDS``; the time
goes from ``assign`` (the client knows the topic already; no record is asked for yet) to the last
record that the log held then: nothing is waited for at the end. The client may queue all of it:
with its default of 64 MB it pauses whenever the queue is full, and then that pause would be
measured. kcat: the whole command with its default settings from its start to its exit, records
written to /dev/null; connecting and the last fetch, which waits in vain to learn that this is the
end, included.

The kept blocks are the gateway's own default, which holds the whole log (202 of 256 MiB): a log
that is larger is encoded again by anybody who reads it from its start. Where there is no Java or
Maven the figures stand alone.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from benchmarks import Figure, at_least
from benchmarks._kafka_broker import JarsUnavailable, copy_topic, kafka_broker
from benchmarks._processes import Gateway, Process
from benchmarks.put_http import taxi_cells
from cellfeed.store.datastore import Datastore

CELLS = 512_000
PUT_CELLS = 10_000
RUNS = 3
KEPT_READS = 2
CONSUME_RECORDS = 10_000
READ_TIMEOUT_S = 300.0
FIRST_READ = at_least(100_000)
KEPT_READ = {"consume": at_least(600_000)}


def figures(cells: int = CELLS, runs: int = RUNS, *, with_kafka: bool = True) -> Iterator[Figure]:
    """Measures; see the module."""
    rates: dict[str, list[float]] = defaultdict(list)
    gateway_us: list[float] = []
    with tempfile.TemporaryDirectory() as directory, ExitStack() as running:
        fill(directory, cells)
        kafka = _kafka_with_the_same(running, directory, cells) if with_kafka else None
        readers = {
            "consume": read_by_consume,
            **({"kcat": read_by_kcat} if shutil.which("kcat") else {}),
        }
        for _ in range(runs):
            for name, read in readers.items():
                with Gateway(directory) as gateway:
                    cpu_before = gateway.cpu_seconds()
                    rates[f"first, {name}"].append(read(gateway.bootstrap, cells))
                    gateway_us.append((gateway.cpu_seconds() - cpu_before) / cells * 1e6)
                    for _ in range(KEPT_READS):
                        rates[f"kept, {name}"].append(read(gateway.bootstrap, cells))
                        if kafka:
                            rates[f"kafka, {name}"].append(read(kafka, cells))
    medians = {name: statistics.median(measured) for name, measured in rates.items()}
    for name in readers:
        case = "" if name == "consume" else f", {name}"
        beside = "Apache Kafka, same records" if kafka else None
        yield Figure(
            f"gateway-read first read{case}",
            medians[f"first, {name}"],
            "records/s",
            limit=FIRST_READ,
        )
        yield Figure(
            f"gateway-read kept read{case}",
            medians[f"kept, {name}"],
            "records/s",
            beside,
            medians.get(f"kafka, {name}"),
            KEPT_READ.get(name),
        )
    yield Figure("gateway-read first read gateway CPU", statistics.median(gateway_us), "µs/record")


def _kafka_with_the_same(running: ExitStack, directory: str, cells: int) -> str | None:
    """A broker with the records of topic ``trips`` of the store in ``directory``; None where Kafka
    cannot be had."""
    logs = Path(running.enter_context(tempfile.TemporaryDirectory()))
    try:
        bootstrap = running.enter_context(kafka_broker(logs))
    except JarsUnavailable as error:
        print(f"gateway-read: without Apache Kafka beside it: {error}", file=sys.stderr)
        return None
    with Gateway(directory) as gateway:
        copy_topic(gateway.bootstrap, bootstrap, "trips", cells)
    read_by_consume(bootstrap, cells)  # the first read warms the broker's JVM
    return bootstrap


def fill(directory: str, cells: int, shards: int = 16) -> None:
    """Puts ``cells`` taxi cells into a new embedded datastore in ``directory``."""
    with Datastore.open_embedded(Path(directory), shards=shards) as datastore:
        remaining = iter(taxi_cells(cells))
        while batch := list(islice(remaining, PUT_CELLS)):
            for result in datastore.put_cells(batch):
                result.or_raise()


def read_by_consume(bootstrap: str, records: int) -> float:
    """Records a second to a new consumer in a new process. Raises RuntimeError unless it is given
    exactly ``records``."""
    with Process(_consume, bootstrap=bootstrap, records=records) as reader:
        taken, seconds = reader.told(READ_TIMEOUT_S)
    if taken != records:
        raise RuntimeError(f"the consumer was given {taken} records of {records}")
    return records / float(seconds)


def _consume(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": settings["bootstrap"],
            "group.id": "gateway-read",
            "enable.auto.commit": False,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 1 << 20,
            "fetch.max.bytes": 32 << 20,
            "max.partition.fetch.bytes": 4 << 20,
        }
    )
    partitions = list(
        consumer.list_topics("trips", timeout=READ_TIMEOUT_S).topics["trips"].partitions
    )
    ends = sum(
        consumer.get_watermark_offsets(TopicPartition("trips", partition), timeout=READ_TIMEOUT_S)[
            1
        ]
        for partition in partitions
    )
    taken = 0
    started = time.perf_counter()
    consumer.assign(
        [TopicPartition("trips", partition, OFFSET_BEGINNING) for partition in partitions]
    )
    while taken < ends and not stop.is_set():
        # A call returns when it has all it was asked for, or after its time-out: the last one asks
        # for no more than there is.
        messages = consumer.consume(min(CONSUME_RECORDS, ends - taken), timeout=1.0)
        for message in messages:
            if message.error():
                raise RuntimeError(str(message.error()))
        taken += len(messages)
    seconds = time.perf_counter() - started
    connection.send((taken, seconds))
    consumer.close()


def read_by_kcat(bootstrap: str, records: int) -> float:
    """Records a second of a whole ``kcat`` command that reads the topic from its beginning to its
    end."""
    command = ["kcat", "-b", bootstrap, "-C", "-t", "trips", "-o", "beginning", "-e", "-q"]
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=READ_TIMEOUT_S)
    return records / (time.perf_counter() - started)
