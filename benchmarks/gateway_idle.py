"""What a gateway costs while nothing happens: memory and CPU without consumers, and with 200 that wait for new cells.

The consumers are confluent-kafka's with its own default settings (a fetch waits at most 500 ms, then the next one is sent), each over all 16 partitions of
topic ``trips``, in ``CLIENTS`` processes of their own. They have read everything there is before the measuring begins. ``memory`` is the gateway's
resident set, ``per consumer`` the difference between the two divided by their number; ``CPU`` is per cent of one core over ``SECONDS``.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from benchmarks import Figure
from benchmarks._processes import Gateway, Process
from benchmarks.gateway_read import fill

CELLS = 6_433
CONSUMERS = 200
CLIENTS = 4
SECONDS = 10.0
SETTLE_S = 3.0
READY_TIMEOUT_S = 120.0
MEBIBYTE = 1 << 20


def figures(consumers: int = CONSUMERS, clients: int = CLIENTS, seconds: float = SECONDS, cells: int = CELLS, settle_s: float = SETTLE_S) -> Iterator[Figure]:
    """Measures; see the module."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as running:
        fill(directory, cells)
        gateway = running.enter_context(Gateway(directory))
        time.sleep(settle_s)
        rss_alone, cpu_alone = _watched(gateway, seconds)
        each = consumers // clients
        processes = [running.enter_context(Process(_wait, bootstrap=gateway.bootstrap, consumers=each, cells=cells)) for _ in range(clients)]
        for process in processes:
            process.told(READY_TIMEOUT_S)
        time.sleep(settle_s)
        rss, cpu = _watched(gateway, seconds)
    case = f"{each * clients} consumers"
    yield Figure("gateway-idle memory, 0 consumers", rss_alone / MEBIBYTE, "MiB")
    yield Figure(f"gateway-idle memory, {case}", rss / MEBIBYTE, "MiB")
    yield Figure("gateway-idle memory per consumer", (rss - rss_alone) / (each * clients) / 1024, "KiB")
    yield Figure("gateway-idle CPU, 0 consumers", cpu_alone, "% of a core")
    yield Figure(f"gateway-idle CPU, {case}", cpu, "% of a core")


def _watched(gateway: Gateway, seconds: float) -> tuple[int, float]:
    """Resident bytes at the end, and CPU in per cent of one core."""
    cpu_before, started = gateway.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    return gateway.rss_bytes(), (gateway.cpu_seconds() - cpu_before) / (time.monotonic() - started) * 100


def _wait(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    """Tells when every consumer has read all cells, then waits: librdkafka's own threads keep the fetches going."""
    consumers = [
        Consumer({"bootstrap.servers": settings["bootstrap"], "group.id": "gateway-idle", "enable.auto.commit": False}) for _ in range(settings["consumers"])
    ]
    for consumer in consumers:
        partitions = consumer.list_topics("trips", timeout=READY_TIMEOUT_S).topics["trips"].partitions
        consumer.assign([TopicPartition("trips", partition, OFFSET_BEGINNING) for partition in partitions])
    for consumer in consumers:
        taken = 0
        while taken < settings["cells"] and not stop.is_set():
            messages = consumer.consume(settings["cells"], timeout=1.0)
            for message in messages:
                if message.error():
                    raise RuntimeError(str(message.error()))
            taken += len(messages)
    connection.send("waiting")
    stop.wait()
    for consumer in consumers:
        consumer.close()
