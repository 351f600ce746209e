"""The gateway read whole by C clients: for the first time (every block encoded), and again (kept blocks).

``CELLS`` taxi cells in 16 shards of one embedded datastore, written once. Each run starts a gateway anew in a process of its own and reads topic
``trips`` three times from it, each reader a new process and a new consumer: first to confluent-kafka's ``consume`` (``first read``), then again
(``kept read``), then to ``kcat`` (``kept read, kcat``; left out where kcat is not installed). ``first read, kcat`` has a gateway of its own.

confluent-kafka: partitions are assigned, records come in calls of ``CONSUME_RECORDS``; the time goes from ``assign`` (the client is connected by
then, no record is asked for yet) to the last record that the log holds: nothing is waited for at the end. kcat: the whole command from its start to
its exit at the end of the log, connecting included, records written to /dev/null.

Kept blocks have room for the whole log (``BLOCKS_BYTES``): a log that is larger than the room is encoded anew by whoever begins from its start.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from benchmarks import Figure, at_least
from benchmarks._processes import Gateway, Process
from benchmarks.put_http import taxi_cells
from store.datastore import Datastore

CELLS = 512_000
PUT_CELLS = 10_000
RUNS = 3
CONSUME_RECORDS = 10_000
BLOCKS_BYTES = 512 << 20
READ_TIMEOUT_S = 300.0
FIRST_READ = at_least(100_000)
KEPT_READ = at_least(600_000)


def figures(cells: int = CELLS, runs: int = RUNS) -> Iterator[Figure]:
    """Measures; see the module."""
    with tempfile.TemporaryDirectory() as directory:
        fill(directory, cells)
        first: list[float] = []
        kept: list[float] = []
        first_kcat: list[float] = []
        kept_kcat: list[float] = []
        gateway_us: list[float] = []
        for _ in range(runs):
            with Gateway(directory, BLOCKS_BYTES) as gateway:
                cpu_before = gateway.cpu_seconds()
                first.append(read_by_consume(gateway.bootstrap, cells))
                gateway_us.append((gateway.cpu_seconds() - cpu_before) / cells * 1e6)
                kept.append(read_by_consume(gateway.bootstrap, cells))
                if shutil.which("kcat"):
                    kept_kcat.append(read_by_kcat(gateway.bootstrap, cells))
            if shutil.which("kcat"):
                with Gateway(directory, BLOCKS_BYTES) as gateway:
                    first_kcat.append(read_by_kcat(gateway.bootstrap, cells))
    yield _rate("first read", first, FIRST_READ)
    yield Figure("gateway-read first read gateway CPU", statistics.median(gateway_us), "µs/record")
    yield _rate("kept read", kept, KEPT_READ)
    if kept_kcat:
        yield _rate("first read, kcat", first_kcat, FIRST_READ)
        yield _rate("kept read, kcat", kept_kcat, None)


def fill(directory: str, cells: int) -> None:
    """Puts ``cells`` taxi cells into a new embedded datastore in ``directory``."""
    with Datastore.open_embedded(Path(directory)) as datastore:
        remaining = iter(taxi_cells(cells))
        while batch := list(islice(remaining, PUT_CELLS)):
            for result in datastore.put_cells(batch):
                result.or_raise()


def read_by_consume(bootstrap: str, records: int) -> float:
    """Records a second to a new consumer in a new process. Raises RuntimeError unless it is given exactly ``records``."""
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
            "queued.max.messages.kbytes": 256 << 10,
            "fetch.max.bytes": 32 << 20,
            "max.partition.fetch.bytes": 4 << 20,
        }
    )
    partitions = list(consumer.list_topics("trips", timeout=READ_TIMEOUT_S).topics["trips"].partitions)
    ends = sum(consumer.get_watermark_offsets(TopicPartition("trips", partition), timeout=READ_TIMEOUT_S)[1] for partition in partitions)
    taken = 0
    started = time.perf_counter()
    consumer.assign([TopicPartition("trips", partition, OFFSET_BEGINNING) for partition in partitions])
    while taken < ends and not stop.is_set():
        messages = consumer.consume(CONSUME_RECORDS, timeout=1.0)
        for message in messages:
            if message.error():
                raise RuntimeError(str(message.error()))
        taken += len(messages)
    seconds = time.perf_counter() - started
    connection.send((taken, seconds))
    consumer.close()


def read_by_kcat(bootstrap: str, records: int) -> float:
    """Records a second of a whole ``kcat`` command that reads the topic from its beginning to its end."""
    command = ["kcat", "-b", bootstrap, "-C", "-t", "trips", "-o", "beginning", "-e", "-q"]
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=READ_TIMEOUT_S)
    return records / (time.perf_counter() - started)


def _rate(case: str, rates: list[float], limit: Any) -> Figure:
    return Figure(f"gateway-read {case}", statistics.median(rates), "records/s", limit=limit)
