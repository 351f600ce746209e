"""From a put's acknowledgement to a Kafka consumer that has the cell, through a MariaDB cluster: a record is given out only when a minion holds its cell.

As ``put-to-consumer``, but with a master and two minions (semi-synchronous replication) below worker and gateway: 500 puts a second, spread evenly.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from benchmarks import Figure, at_most
from benchmarks._mariadb_instance import mariadb_instance
from benchmarks._processes import Process
from benchmarks.put_http import taxi_cells
from benchmarks.put_to_consumer import ARRIVAL_TIMEOUT_S, PUTS_PER_S, Passage, consume, percentile, put_evenly
from store.client import Client

SECONDS = 12.0
WARM_UP_S = 2.0
RUNS = 3
P50 = at_most(10.0)
P99 = at_most(30.0)


def figures(seconds: float = SECONDS, runs: int = RUNS, warm_up_s: float = WARM_UP_S) -> Iterator[Figure]:
    """Measures; see the module."""
    passages: list[Passage] = []
    rates: list[float] = []
    for _ in range(runs):
        run = _run(seconds)
        begun = run[0].started
        rates.append(len(run) / (run[-1].started - begun))
        passages += [passage for passage in run if passage.started - begun >= warm_up_s]
    latency = sorted((passage.received - passage.acknowledged) * 1e3 for passage in passages)
    put = sorted((passage.acknowledged - passage.started) * 1e3 for passage in passages)
    yield Figure("mysql-put-to-consumer p50", percentile(latency, 50), "ms", limit=P50)
    yield Figure("mysql-put-to-consumer p99", percentile(latency, 99), "ms", limit=P99)
    yield Figure("mysql-put-to-consumer put p50", percentile(put, 50), "ms")
    yield Figure("mysql-put-to-consumer put p99", percentile(put, 99), "ms")
    yield Figure("mysql-put-to-consumer rate", statistics.median(rates), "puts/s", "asked for", PUTS_PER_S)


def _run(seconds: float) -> list[Passage]:
    cells = taxi_cells(int(PUTS_PER_S * seconds))
    with (
        mariadb_instance() as instance,
        Process(consume, bootstrap=instance.bootstrap, records=len(cells) + 1) as consumer,
        Client(instance.url, "trips") as client,
    ):
        client.put_cell(cells[0][0], "WARM_UP", 1, {})
        consumer.told()
        time.sleep(1)
        sent = put_evenly(client, cells)
        received: dict[str, float] = consumer.told(ARRIVAL_TIMEOUT_S)
    return sorted(Passage(started, acknowledged, received[key]) for key, (started, acknowledged) in sent.items())
