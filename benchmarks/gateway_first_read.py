"""The first full read of a log in MariaDB through gateways that have read nothing yet: by one
gateway process, and by two.

``CELLS`` taxi cells in 16 shards of a cluster of three. Before each read all gateways are ended and
started again. The client is confluent-kafka's ``consume``; of two gateways each leads half of the
partitions, so one client reads through both at once. ``CPU`` is that of the gateway's process per
record: its inverse is the most that one core can give. Two gateways, a master and a client want
five cores for themselves; with fewer, ``two ÷ one`` says how much of the machine was left.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from itertools import islice

from benchmarks import Figure, at_least
from benchmarks._mariadb_instance import Instance, mariadb_instance
from benchmarks.gateway_read import PUT_CELLS, read_by_consume
from benchmarks.put_http import taxi_cells
from cellfeed.store.http.client import Client

CELLS = 256_000
RUNS = 3
GATEWAYS = ("gateway-1", "gateway-2")
FIRST_READ = at_least(120_000)
TWO_TO_ONE = at_least(1.8)


def figures(cells: int = CELLS, runs: int = RUNS) -> Iterator[Figure]:
    """Measures; see the module."""
    one: list[float] = []
    two: list[float] = []
    cpu_us: list[float] = []
    with (
        mariadb_instance(semi_sync=False, gateways=GATEWAYS) as instance,
        Client(instance.url, "trips", timeout_s=120) as client,
    ):
        remaining = iter(taxi_cells(cells))
        while batch := list(islice(remaining, PUT_CELLS)):
            for result in client.put_cells(batch):
                result.or_raise()
        for _ in range(runs):
            rate, us = _first_read(instance, GATEWAYS[:1], cells)
            one.append(rate)
            cpu_us.append(us)
            two.append(_first_read(instance, GATEWAYS, cells)[0])
    yield Figure(
        "gateway-first-read MariaDB, one gateway",
        statistics.median(one),
        "records/s",
        limit=FIRST_READ,
    )
    yield Figure(
        "gateway-first-read MariaDB, one gateway CPU", statistics.median(cpu_us), "µs/record"
    )
    yield Figure(
        "gateway-first-read MariaDB, two gateways",
        statistics.median(two),
        "records/s",
        "one gateway",
        statistics.median(one),
    )
    yield Figure(
        "gateway-first-read MariaDB, two ÷ one",
        statistics.median(two) / statistics.median(one),
        "×",
        limit=TWO_TO_ONE,
    )


def _first_read(instance: Instance, names: tuple[str, ...], cells: int) -> tuple[float, float]:
    """Records a second through these gateways, and their microseconds of CPU for each."""
    instance.end_gateways()
    started = [instance.start_gateway(name) for name in names]
    before = sum(sum(process.cpu_times()[:2]) for _, process in started)
    rate = read_by_consume(started[0][0], cells)
    return rate, (
        sum(sum(process.cpu_times()[:2]) for _, process in started) - before
    ) / cells * 1e6
