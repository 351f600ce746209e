"""From a put's acknowledgement to a Kafka consumer that has the cell, at 500 puts a second.

Worker, gateway, consumer and the putting program are four processes over one embedded store; every
put is durable before it is acknowledged. ``PUTS_PER_S`` single puts a second are spread evenly over
``CALLERS`` callers of one ``Client``: put *n* is due at *n* / ``PUTS_PER_S``, and none is left out
when one is late; ``rate`` is the rate that was reached. The consumer is confluent-kafka's ``poll``
over all partitions with its own default settings.

``latency`` goes from the moment the caller has the acknowledgement to the moment ``poll`` gives the
record, both on the machine's monotonic clock. It can be below zero: followers are woken when the
cell is committed, while the acknowledgement is still on its way. ``from start`` goes from the start
of the put, so it holds the put itself, which stands beside it as ``put``. The first ``WARM_UP_S``
seconds are not counted. Percentiles are over all puts of all runs.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from benchmarks import Figure, Limit, at_most
from benchmarks._processes import Gateway, Process, Worker
from benchmarks.put_http import Put, taxi_cells
from cellfeed.store.http.client import Client

PUTS_PER_S = 500
SECONDS = 12.0
WARM_UP_S = 2.0
RUNS = 3
CALLERS = 16
"""Enough that a put which waits for a slow fsync does not keep the next one from starting when it
is due."""

P50 = at_most(5.0)
P99 = at_most(20.0)
ARRIVAL_TIMEOUT_S = 30.0
"""From the last acknowledgement to the last record; a cell that has not arrived until then is lost,
and the run fails."""


class Passage(NamedTuple):
    """One put's way, in seconds of the monotonic clock."""

    started: float
    acknowledged: float
    received: float


def figures(
    seconds: float = SECONDS, runs: int = RUNS, warm_up_s: float = WARM_UP_S
) -> Iterator[Figure]:
    """Measures; see the module."""
    yield from passage_figures(
        "put-to-consumer", [run_embedded(seconds) for _ in range(runs)], warm_up_s, P50, P99
    )


def passage_figures(
    name: str, runs: Sequence[list[Passage]], warm_up_s: float, p50: Limit | None, p99: Limit
) -> Iterator[Figure]:
    """The figures of runs, each in the order of its puts' starts."""
    rates = [len(run) / (run[-1].started - run[0].started) for run in runs]
    passages = [
        passage for run in runs for passage in run if passage.started - run[0].started >= warm_up_s
    ]
    latency = sorted((passage.received - passage.acknowledged) * 1e3 for passage in passages)
    from_start = sorted((passage.received - passage.started) * 1e3 for passage in passages)
    put = sorted((passage.acknowledged - passage.started) * 1e3 for passage in passages)
    yield Figure(f"{name} p50", percentile(latency, 50), "ms", limit=p50)
    yield Figure(f"{name} p99", percentile(latency, 99), "ms", limit=p99)
    for what, values in (("from start", from_start), ("put", put)):
        yield Figure(f"{name} {what} p50", percentile(values, 50), "ms")
        yield Figure(f"{name} {what} p99", percentile(values, 99), "ms")
    yield Figure(f"{name} rate", statistics.median(rates), "puts/s", "asked for", PUTS_PER_S)


def passages_of(
    sent: Mapping[str, tuple[float, float]], received: Mapping[str, float]
) -> list[Passage]:
    """In the order of their starts. ``sent``: the start and the acknowledgement of each put."""
    return sorted(
        Passage(started, acknowledged, received[key])
        for key, (started, acknowledged) in sent.items()
    )


def run_embedded(seconds: float) -> list[Passage]:
    """The passages of one run in the order of their starts. Raises RuntimeError when a cell that
    was acknowledged did not come."""
    cells = taxi_cells(int(PUTS_PER_S * seconds))
    with (
        tempfile.TemporaryDirectory() as directory,
        Worker(directory) as worker,
        Gateway(directory) as gateway,
        Process(consume, bootstrap=gateway.bootstrap, records=len(cells) + 1) as consumer,
        Client(worker.url, "trips") as client,
    ):
        # Connections are made, and the worker has looked up whom to wake, before the clock runs.
        client.put_cell(cells[0][0], "WARM_UP", 1, {})
        consumer.told()
        time.sleep(1)
        sent = put_evenly(client, cells)
        received: dict[str, float] = consumer.told(ARRIVAL_TIMEOUT_S)
    lost = [key for key in sent if key not in received]
    if lost:
        raise RuntimeError(
            f"{len(lost)} acknowledged cells did not come within {ARRIVAL_TIMEOUT_S} s, {lost[0]}"
            " among them"
        )
    return sorted(
        Passage(started, acknowledged, received[key])
        for key, (started, acknowledged) in sent.items()
    )


def put_evenly(
    client: Client, cells: list[Put], puts_per_s: int = PUTS_PER_S
) -> dict[str, tuple[float, float]]:
    """When each put started and when it was acknowledged, by row key."""
    sent: dict[str, tuple[float, float]] = {}
    failures: list[BaseException] = []
    numbers = iter(range(len(cells)))
    lock = threading.Lock()
    begun = time.monotonic() + 0.1

    def call() -> None:
        try:
            while not failures:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                time.sleep(max(0.0, begun + number / puts_per_s - time.monotonic()))
                started = time.monotonic()
                client.put_cell(*cells[number])
                sent[str(cells[number][0])] = started, time.monotonic()
        except BaseException as error:
            failures.append(error)

    callers = [threading.Thread(target=call) for _ in range(CALLERS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    if failures:
        raise failures[0]
    return sent


def consume(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    """Tells when it reads, then when it received each record, by key.

    It begins at the beginning, so that nothing depends on when its first fetch comes. The warm-up
    has the first trip's key, whose own record comes later.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": settings["bootstrap"],
            "group.id": "put-to-consumer",
            "enable.auto.commit": False,
            **settings.get("client", {}),
        }
    )
    partitions = list(
        consumer.list_topics("trips", timeout=ARRIVAL_TIMEOUT_S).topics["trips"].partitions
    )
    consumer.assign(
        [TopicPartition("trips", partition, OFFSET_BEGINNING) for partition in partitions]
    )
    received: dict[str, float] = {}
    for taken in range(settings["records"]):
        while (message := consumer.poll(0.5)) is None and not stop.is_set():
            continue
        now = time.monotonic()
        if message is None:
            return
        if message.error():
            raise RuntimeError(str(message.error()))
        received[bytes(message.key() or b"").decode()] = now
        if taken == 0:
            connection.send("warmed up")
    connection.send(received)
    consumer.close()


def percentile(ordered: list[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
