"""From a put's acknowledgement to a reader of committed records in Apache Kafka, through the
exporter, at 500 puts a second; and beside it through Debezium on Kafka Connect, from the same
MariaDB into the same broker, one after the other.

As ``put-to-consumer``, with an exporter and a broker in the gateway's place: worker, exporter,
consumer and the putting program are four processes; over one embedded store, over one durable
MariaDB server; and over a cluster of three, with a minion's watermark, that all share the cores
with the rest.

A broker that has just been started takes several times as long for a transaction, and most of a
core to compile itself; so each broker has ``BROKER_WARM_UP_S`` of the same load first, which is not
counted. Debezium comes last, so it has the warmest; it is tuned for latency: it looks for changes
every millisecond. Its readers need not wait for commits, for it has no transactions. Where its jars
cannot be had there is nothing beside; measured by others on such a machine: 353 and 793 ms as it
comes, 26 and 53 ms tuned.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

from benchmarks import Figure, at_most
from benchmarks._debezium import consume_changes, debezium, make_topics
from benchmarks._export import SHARDS, consume_committed, export, make_topic
from benchmarks._kafka_broker import JarsUnavailable, kafka_broker
from benchmarks._mariadb_instance import mariadb_instance
from benchmarks._processes import Process, Worker
from benchmarks.put_http import Put, taxi_cells
from benchmarks.put_to_consumer import (
    ARRIVAL_TIMEOUT_S,
    PUTS_PER_S,
    Passage,
    passage_figures,
    put_evenly,
)
from cellfeed.store.http.client import Client

SECONDS = 20.0
WARM_UP_S = 10.0
"""Of each run, not counted: its exporter and consumer have just been started."""

BROKER_WARM_UP_S = 120.0
"""Figures of others are of warm brokers. After one minute of this load a broker still spends a
tenth of a core more on it than after three."""

RUNS = 3
P50 = at_most(15.0)
P99 = at_most(40.0)


MEMORY_PART = 0.25
_TUNED = {"snapshot.mode": "no_data", "poll.interval.ms": "1"}
_START_TIMEOUT_S = 120.0

_Run = tuple[list[Passage], int]
"""How the cells of a run fared, and the exporter's resident bytes."""


def figures(
    seconds: float = SECONDS,
    runs: int = RUNS,
    warm_up_s: float = WARM_UP_S,
    broker_warm_up_s: float = BROKER_WARM_UP_S,
    *,
    with_mariadb: bool = True,
) -> Iterator[Figure]:
    """Measures; see the module. Raises RuntimeError where no broker, or no MariaDB, can be had."""
    lengths_s = [broker_warm_up_s, *[seconds] * runs]
    try:
        found = _embedded(lengths_s)
        yield from passage_figures("export-latency", [run for run, _ in found], warm_up_s, P50, P99)
        yield Figure(
            "export-latency memory", statistics.median(bytes_ / 2**20 for _, bytes_ in found), "MiB"
        )
        if with_mariadb:
            for nodes in (1, 3):
                yield from _on_mariadb(lengths_s, warm_up_s, nodes)
    except JarsUnavailable as reason:
        raise RuntimeError(f"no Kafka: {reason}") from reason


def _embedded(lengths_s: Sequence[float]) -> list[_Run]:
    with (
        tempfile.TemporaryDirectory() as directory,
        kafka_broker(Path(directory)) as bootstrap,
        Worker(directory) as worker,
    ):
        make_topic(bootstrap)
        return _through_exporter(worker.url, bootstrap, _cells(lengths_s), {"directory": directory})


def _on_mariadb(lengths_s: Sequence[float], warm_up_s: float, nodes: int) -> Iterator[Figure]:
    """The exporter, then Debezium, each with cells of its own."""
    *cells, beside_cells = _cells([*lengths_s, lengths_s[-1]])
    name, beside = (
        f"export-latency mariadb {'server' if nodes == 1 else 'cluster'}",
        "Debezium, tuned",
    )
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        instance = stack.enter_context(mariadb_instance(nodes=nodes))
        bootstrap = stack.enter_context(kafka_broker(directory))
        make_topic(bootstrap)
        found = _through_exporter(instance.url, bootstrap, cells, {"config": str(instance.config)})
        own, memory = [run for run, _ in found], statistics.median(bytes_ for _, bytes_ in found)
        try:
            peer, peer_memory = _through_debezium(
                instance.url, directory, bootstrap, instance.servers[0].port, beside_cells
            )
        except JarsUnavailable:
            yield from _latencies(name, own, warm_up_s)
            yield Figure(f"{name} memory", memory / 2**20, "MiB")
            return
    for figure, limit, other in zip(
        _latencies(name, own, warm_up_s),
        (P50, P99),
        _latencies(name, [peer], warm_up_s),
        strict=True,
    ):
        yield Figure(figure.name, figure.figure, figure.unit, beside, other.figure, limit)
    yield Figure(
        f"{name} memory",
        memory / 2**20,
        "MiB",
        "Connect with it",
        peer_memory / 2**20,
        at_most(MEMORY_PART * peer_memory / 2**20),
    )


def _cells(lengths_s: Sequence[float]) -> list[list[Put]]:
    """Those of each run."""
    ends = [int(PUTS_PER_S * sum(lengths_s[:number])) for number in range(len(lengths_s) + 1)]
    cells = list(taxi_cells(ends[-1]))
    return [cells[begin:end] for begin, end in pairwise(ends)]


def _latencies(name: str, runs: Sequence[list[Passage]], warm_up_s: float) -> list[Figure]:
    return [
        figure
        for figure in passage_figures(name, runs, warm_up_s, P50, P99)
        if figure.name in (f"{name} p50", f"{name} p99")
    ]


def _through_exporter(
    url: str, bootstrap: str, runs: Sequence[Sequence[Put]], settings: dict[str, str]
) -> list[_Run]:
    """One run after the other over the same store and topic. The first one is not told."""
    found: list[_Run] = []
    exported = 0
    for number, cells in enumerate(runs):
        exported += len(cells) + 1
        with (
            Process(export, bootstrap=bootstrap, cells=1, **settings) as exporter,
            Process(consume_committed, bootstrap=bootstrap, records=exported) as consumer,
            Client(url, "trips") as client,
        ):
            client.put_cell(cells[0][0], f"WARM_UP_{number}", 1, {})
            exporter.told()
            found.append((_passages(client, cells, consumer), exporter.rss_bytes()))
    return found[1:]


def _through_debezium(
    url: str, directory: Path, bootstrap: str, port: int, cells: Sequence[Put]
) -> tuple[list[Passage], int]:
    make_topics(bootstrap, SHARDS)
    with (
        debezium(directory, bootstrap, port, SHARDS, _TUNED) as running,
        Process(
            consume_changes, bootstrap=bootstrap, shards=SHARDS, records=len(cells) + 1
        ) as consumer,
        Client(url, "trips") as client,
    ):
        running.wait_streaming(_START_TIMEOUT_S)
        client.put_cell(cells[0][0], "WARM_UP", 1, {})
        return _passages(client, cells, consumer), running.rss_bytes()


def _passages(client: Client, cells: Sequence[Put], consumer: Process) -> list[Passage]:
    """Of the cells, once a first one has come through."""
    consumer.told()
    time.sleep(1)
    sent = put_evenly(client, list(cells))
    received: dict[str, float] = consumer.told(ARRIVAL_TIMEOUT_S)
    return sorted(
        Passage(started, acknowledged, received[key])
        for key, (started, acknowledged) in sent.items()
    )
