"""The cost of a gateway while nothing happens, without consumers and with 2,000 that wait for new
cells, beside Apache Kafka with the same ones.

Each consumer is a connection that sends librdkafka's requests while nothing comes: a Fetch of all
16 partitions of topic ``trips`` from their ends, at most half a second to wait; when it is
answered the next one. They are at the end of the log before the measuring begins. ``memory`` is the
server's resident set; the consumers' share is the difference to the same server before they came,
divided by their number. ``CPU`` is per cent of one core over ``SECONDS``. The broker is the JVM
with its default collector and 512 MiB of heap, which it fills as it likes: its memory says little
about single consumers.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks import Figure
from benchmarks._idle_consumers import wait_idle
from benchmarks._kafka_broker import JarsUnavailable, copy_topic, kafka_broker_process
from benchmarks._processes import Gateway, Process
from benchmarks.gateway_read import fill

CELLS = 6_433
CONSUMERS = 2_000
CLIENTS = 2
SECONDS = 10.0
SETTLE_S = 3.0
READY_TIMEOUT_S = 120.0
MEBIBYTE = 1 << 20


class _Cost(NamedTuple):
    """Of a server: resident bytes, and CPU in per cent of one core, without consumers and with
    them."""

    rss_alone: int
    cpu_alone: float
    rss: int
    cpu: float


def figures(
    consumers: int = CONSUMERS,
    clients: int = CLIENTS,
    seconds: float = SECONDS,
    cells: int = CELLS,
    settle_s: float = SETTLE_S,
    *,
    with_kafka: bool = True,
) -> Iterator[Figure]:
    """Measures; see the module."""
    each = consumers // clients

    def cost(bootstrap: str, rss: Callable[[], int], cpu: Callable[[], float]) -> _Cost:
        time.sleep(settle_s)
        rss_alone, cpu_alone = _watched(rss, cpu, seconds)
        with ExitStack() as waiting:
            processes = [
                waiting.enter_context(
                    Process(wait_idle, bootstrap=bootstrap, consumers=each, topic="trips")
                )
                for _ in range(clients)
            ]
            for process in processes:
                process.told(READY_TIMEOUT_S)
            time.sleep(settle_s)
            return _Cost(rss_alone, cpu_alone, *_watched(rss, cpu, seconds))

    kafka: _Cost | None = None
    with (
        tempfile.TemporaryDirectory() as directory,
        tempfile.TemporaryDirectory() as logs,
        ExitStack() as running,
    ):
        fill(directory, cells)
        with Gateway(directory) as gateway:
            ours = cost(gateway.bootstrap, gateway.rss_bytes, gateway.cpu_seconds)
            broker = (
                _kafka_with_the_same(running, logs, gateway.bootstrap, cells)
                if with_kafka
                else None
            )
        if broker is not None:
            kafka = cost(
                broker[0],
                lambda: int(broker[1].memory_info().rss),
                lambda: float(sum(broker[1].cpu_times()[:2])),
            )
    beside = "Apache Kafka" if kafka else None
    case = f"{each * clients} consumers"
    yield Figure(
        "gateway-idle memory, 0 consumers",
        ours.rss_alone / MEBIBYTE,
        "MiB",
        beside,
        kafka and kafka.rss_alone / MEBIBYTE,
    )
    yield Figure(
        f"gateway-idle memory, {case}",
        ours.rss / MEBIBYTE,
        "MiB",
        beside,
        kafka and kafka.rss / MEBIBYTE,
    )
    yield Figure(
        "gateway-idle memory per consumer",
        _each(ours, each * clients),
        "KiB",
        beside,
        kafka and max(_each(kafka, each * clients), 0.0),
    )
    yield Figure(
        "gateway-idle CPU, 0 consumers",
        ours.cpu_alone,
        "% of a core",
        beside,
        kafka and kafka.cpu_alone,
    )
    yield Figure(f"gateway-idle CPU, {case}", ours.cpu, "% of a core", beside, kafka and kafka.cpu)


def _kafka_with_the_same(
    running: ExitStack, logs: str, gateway: str, cells: int
) -> tuple[str, psutil.Process] | None:
    try:
        bootstrap, broker = running.enter_context(kafka_broker_process(Path(logs)))
    except JarsUnavailable as error:
        print(f"gateway-idle: without Apache Kafka beside it: {error}", file=sys.stderr)
        return None
    copy_topic(gateway, bootstrap, "trips", cells)
    return bootstrap, broker


def _each(cost: _Cost, consumers: int) -> float:
    return (cost.rss - cost.rss_alone) / consumers / 1024


def _watched(rss: Callable[[], int], cpu: Callable[[], float], seconds: float) -> tuple[int, float]:
    """Resident bytes at the end, and CPU in per cent of one core."""
    cpu_before, started = cpu(), time.monotonic()
    time.sleep(seconds)
    return rss(), (cpu() - cpu_before) / (time.monotonic() - started) * 100
