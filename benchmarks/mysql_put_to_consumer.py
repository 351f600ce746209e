"""From a put's acknowledgement to a Kafka consumer that has the cell, through a MariaDB cluster: a
record is given out only when a minion holds its cell.

As ``put-to-consumer``, but with a master and two minions (semi-synchronous replication) below
worker and gateway: 500 puts a second, spread evenly.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks import Figure, at_most
from benchmarks._mariadb_instance import mariadb_instance
from benchmarks._processes import Process
from benchmarks.put_http import taxi_cells
from benchmarks.put_to_consumer import (
    ARRIVAL_TIMEOUT_S,
    PUTS_PER_S,
    Passage,
    consume,
    passage_figures,
    put_evenly,
)
from cellfeed.store.http.client import Client

SECONDS = 12.0
WARM_UP_S = 2.0
RUNS = 3
P50 = at_most(10.0)
P99 = at_most(30.0)


def figures(
    seconds: float = SECONDS, runs: int = RUNS, warm_up_s: float = WARM_UP_S
) -> Iterator[Figure]:
    """Measures; see the module."""
    yield from passage_figures(
        "mysql-put-to-consumer", [run_mariadb(seconds) for _ in range(runs)], warm_up_s, P50, P99
    )


def run_mariadb(seconds: float) -> list[Passage]:
    """The passages of one run in the order of their starts."""
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
    return sorted(
        Passage(started, acknowledged, received[key])
        for key, (started, acknowledged) in sent.items()
    )
