"""Kept blocks beside Apache Kafka with the same records in its page cache: one partition and
sixteen, to C, Python and Java clients.

``CELLS`` taxi cells in an embedded datastore of one shard, and of sixteen; a gateway that has
encoded all of it before; and a broker (one node, loopback) that holds the same records uncompressed
in the batches of a producer with ``linger.ms``. Each read is a new client in a process of its own;
reads of the two are interleaved, and the rates are medians of ``RUNS``.

``kcat``: librdkafka without any Python above it (C), the whole command from its start to its exit,
its records written to /dev/null; the fetch that waits at the end waits 5 ms. ``confluent-kafka``:
``consume`` as in ``gateway-read``. ``java``: Kafka's own ``ConsumerPerformance``, its
``fetch.nMsg.sec``: from the assignment on, JVM warm-up included. Clients that are not installed are
left out.

``CPU``: microseconds of server per record, gateway beside broker, over all reads of all clients: on
a busy machine it says more than the rates.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import psutil

from benchmarks import Figure, Limit, at_least
from benchmarks._kafka_broker import JarsUnavailable, copy_topic, kafka_broker_process
from benchmarks._processes import Gateway
from benchmarks.gateway_read import READ_TIMEOUT_S, fill, read_by_consume
from cellfeed.servers.kafka_jars import kafka_class_path

CELLS = 256_000
RUNS = 3
PARTITIONS = (1, 16)
RATIOS: Final = {"kcat": 1.0, "confluent-kafka": 0.95, "java": 0.95}
"""Of the broker's rate."""


def figures(
    cells: int = CELLS,
    runs: int = RUNS,
    partitions: tuple[int, ...] = PARTITIONS,
    *,
    with_java: bool = True,
) -> Iterator[Figure]:
    """Measures; see the module."""
    readers: dict[str, Callable[[str, int], float]] = {"confluent-kafka": read_by_consume}
    if shutil.which("kcat"):
        readers["kcat"] = _read_by_kcat
    if with_java and shutil.which("java"):
        readers["java"] = _read_by_java
    with tempfile.TemporaryDirectory() as logs, ExitStack() as running:
        try:
            kafka, broker = running.enter_context(kafka_broker_process(Path(logs)))
        except JarsUnavailable as error:
            print(
                f"gateway-vs-kafka: without Apache Kafka there is nothing to compare with: {error}",
                file=sys.stderr,
            )
            return
        for count in partitions:
            yield from _compared(count, cells, runs, readers, kafka, broker)


def _compared(
    partitions: int,
    cells: int,
    runs: int,
    readers: dict[str, Callable[[str, int], float]],
    kafka: str,
    broker: psutil.Process,
) -> Iterator[Figure]:
    case = "1 partition" if partitions == 1 else f"{partitions} partitions"
    ours: dict[str, list[float]] = defaultdict(list)
    theirs: dict[str, list[float]] = defaultdict(list)
    cpu = {"gateway": 0.0, "broker": 0.0}
    with tempfile.TemporaryDirectory() as directory:
        fill(directory, cells, partitions)
        with Gateway(directory, partitions) as gateway:
            copy_topic(gateway.bootstrap, kafka, "trips", cells)  # encodes every block as well
            read_by_consume(kafka, cells)  # warms the broker's JVM
            for _ in range(runs):
                for name, read in readers.items():
                    before = gateway.cpu_seconds(), _cpu_seconds(broker)
                    ours[name].append(read(gateway.bootstrap, cells))
                    theirs[name].append(read(kafka, cells))
                    cpu["gateway"] += gateway.cpu_seconds() - before[0]
                    cpu["broker"] += _cpu_seconds(broker) - before[1]
            _delete_topic(kafka)
    for name in readers:
        beside = statistics.median(theirs[name])
        limit: Limit = at_least(round(RATIOS[name] * beside))
        yield Figure(
            f"gateway-vs-kafka {case}, {name}",
            statistics.median(ours[name]),
            "records/s",
            "Apache Kafka",
            beside,
            limit,
        )
    read_cells = cells * runs * len(readers)
    yield Figure(
        f"gateway-vs-kafka {case}, CPU",
        cpu["gateway"] / read_cells * 1e6,
        "µs/record",
        "broker",
        cpu["broker"] / read_cells * 1e6,
    )


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _delete_topic(bootstrap: str) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics(["trips"], operation_timeout=30)["trips"].result(60)
    ends = time.monotonic() + 60
    while "trips" in admin.list_topics(timeout=30).topics and time.monotonic() < ends:
        time.sleep(0.1)


def _read_by_kcat(bootstrap: str, records: int) -> float:
    command = [
        "kcat",
        "-b",
        bootstrap,
        "-C",
        "-t",
        "trips",
        "-o",
        "beginning",
        "-e",
        "-q",
        "-X",
        "fetch.wait.max.ms=5",
    ]
    command += ["-X", "queued.max.messages.kbytes=1048576", "-X", "queued.min.messages=1000000"]
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=READ_TIMEOUT_S)
    return records / (time.perf_counter() - started)


def _read_by_java(bootstrap: str, records: int) -> float:
    command = [
        "java",
        "-Xmx256m",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        "-cp",
        kafka_class_path(),
        "org.apache.kafka.tools.ConsumerPerformance",
    ]
    command += [
        "--bootstrap-server",
        bootstrap,
        "--topic",
        "trips",
        "--messages",
        str(records),
        "--hide-header",
        "--timeout",
        "60000",
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        timeout=READ_TIMEOUT_S,
        env={**os.environ, "LC_ALL": "C"},
    )
    # start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec,
    # rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec
    told = [line for line in done.stdout.splitlines() if line.count(",") == 9]
    if not told or int(told[-1].split(",")[4]) < records:
        raise RuntimeError(
            f"ConsumerPerformance did not read {records} records:"
            f" {done.stdout[-500:]}{done.stderr[-500:]}"
        )
    return float(told[-1].split(",")[9])
