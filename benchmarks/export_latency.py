"""From a put's acknowledgement to a reader of committed records in Apache Kafka, through the exporter, at 500 puts a second.

As ``put-to-consumer``, with an exporter and a broker in the gateway's place: worker, exporter, consumer and the putting program are four processes over one
embedded store. Measured by others on such a machine, from MariaDB: Debezium 3.3 as it comes 353 and 793 ms, tuned for latency 26 and 53 ms.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import Figure, at_most
from benchmarks._export import consume_committed, export, make_topic
from benchmarks._kafka_broker import JarsUnavailable, kafka_broker
from benchmarks._processes import Process, Worker
from benchmarks.put_http import taxi_cells
from benchmarks.put_to_consumer import ARRIVAL_TIMEOUT_S, PUTS_PER_S, Passage, passage_figures, put_evenly
from store.client import Client

SECONDS = 24.0
WARM_UP_S = 12.0
"""A broker that has just been started takes several times as long for a transaction; figures of others are of warm ones."""

RUNS = 3
P50 = at_most(15.0)
P99 = at_most(40.0)


def figures(seconds: float = SECONDS, runs: int = RUNS, warm_up_s: float = WARM_UP_S) -> Iterator[Figure]:
    """Measures; see the module. Raises RuntimeError where no broker can be had."""
    found = [_run(seconds) for _ in range(runs)]
    yield from passage_figures("export-latency", [run for run, _ in found], warm_up_s, P50, P99)
    yield Figure("export-latency memory", statistics.median(bytes_ / 2**20 for _, bytes_ in found), "MiB")


def _run(seconds: float) -> tuple[list[Passage], int]:
    cells = taxi_cells(int(PUTS_PER_S * seconds))
    try:
        with tempfile.TemporaryDirectory() as directory, kafka_broker(Path(directory)) as bootstrap:
            make_topic(bootstrap)
            with (
                Worker(directory) as worker,
                Process(export, bootstrap=bootstrap, directory=directory, cells=1) as exporter,
                Process(consume_committed, bootstrap=bootstrap, records=len(cells) + 1) as consumer,
                Client(worker.url, "trips") as client,
            ):
                client.put_cell(cells[0][0], "WARM_UP", 1, {})
                exporter.told()
                consumer.told()
                time.sleep(1)
                sent = put_evenly(client, cells)
                received: dict[str, float] = consumer.told(ARRIVAL_TIMEOUT_S)
                memory = exporter.rss_bytes()
    except JarsUnavailable as reason:
        raise RuntimeError(f"no Kafka: {reason}") from reason
    return sorted(Passage(started, acknowledged, received[key]) for key, (started, acknowledged) in sent.items()), memory
