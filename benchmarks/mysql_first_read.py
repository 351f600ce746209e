"""The first full read of a log in MariaDB through the gateway, to confluent-kafka's ``consume``:
scan, encoding and the way to the client.

``CELLS`` taxi cells in 16 shards of a cluster of three; every run reads through a gateway that has
read nothing yet.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from itertools import islice

from benchmarks import Figure, at_least
from benchmarks._mariadb_instance import mariadb_instance
from benchmarks.gateway_read import PUT_CELLS, read_by_consume
from benchmarks.put_http import taxi_cells
from cellfeed.store.http.client import Client

CELLS = 500_000
RUNS = 1
FIRST_READ = at_least(100_000)


def figures(cells: int = CELLS, runs: int = RUNS) -> Iterator[Figure]:
    """Measures; see the module."""
    first: list[float] = []
    again: list[float] = []
    for _ in range(runs):
        with (
            mariadb_instance(semi_sync=False) as instance,
            Client(instance.url, "trips", timeout_s=120) as client,
        ):
            remaining = iter(taxi_cells(cells))
            while batch := list(islice(remaining, PUT_CELLS)):
                for result in client.put_cells(batch):
                    result.or_raise()
            first.append(read_by_consume(instance.bootstrap, cells))
            again.append(read_by_consume(instance.bootstrap, cells))
    yield Figure("mysql-first-read first", statistics.median(first), "records/s", limit=FIRST_READ)
    yield Figure("mysql-first-read again", statistics.median(again), "records/s")
