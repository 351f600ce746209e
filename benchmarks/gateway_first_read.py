"""The first full read of a log in MariaDB through gateways that have read nothing yet: by one
gateway process, and by two.

``CELLS`` taxi cells in 16 shards of a cluster of three. Before each read all gateways are ended and
started again. The client is confluent-kafka's ``consume``; of two gateways each leads half of the
partitions, so one client reads through both at once. ``CPU`` is that of the gateway's process per
record: its inverse is the most that one core can give. Two gateways, a master and a client want
five cores for themselves; with fewer, ``two ÷ one`` says how much of the machine was left. So each
gateway gets a quota of ``QUOTA`` of a core for ``QUOTA_CELLS`` cells more, where control groups can
be made: then neither the client nor the server is the limit.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice

from benchmarks import Figure, at_least
from benchmarks._mariadb_instance import Instance, mariadb_instance
from benchmarks._quota import can_limit, quota
from benchmarks.gateway_read import PUT_CELLS, read_by_consume
from benchmarks.put_http import taxi_cells
from cellfeed.store.http.client import Client

CELLS = 256_000
RUNS = 3
QUOTA = 0.08
QUOTA_CELLS = 48_000
GATEWAYS = ("gateway-1", "gateway-2")
FIRST_READ = at_least(120_000)
TWO_TO_ONE = at_least(1.8)


def figures(cells: int = CELLS, runs: int = RUNS) -> Iterator[Figure]:
    """Measures; see the module."""
    one: list[float] = []
    two: list[float] = []
    cpu_us: list[float] = []
    limited: list[tuple[float, float]] = []
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
            if can_limit():
                some = min(cells, QUOTA_CELLS)
                lone, _ = _first_read(instance, GATEWAYS[:1], some, QUOTA)
                limited.append((lone, _first_read(instance, GATEWAYS, some, QUOTA)[0]))
        instance.end_gateways()
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
    if limited:
        lone = statistics.median(each for each, _ in limited)
        both = statistics.median(each for _, each in limited)
        yield Figure(
            "gateway-first-read MariaDB with a quota, two gateways",
            both,
            "records/s",
            "one gateway",
            lone,
        )
        yield Figure(
            "gateway-first-read MariaDB with a quota, two ÷ one", both / lone, "×", limit=TWO_TO_ONE
        )


def _first_read(
    instance: Instance, names: tuple[str, ...], cells: int, part: float | None = None
) -> tuple[float, float]:
    """Records a second through these gateways, and their microseconds of CPU for each. ``part``: of
    a core, for each of them."""
    instance.end_gateways()
    started = [instance.start_gateway(name) for name in names]
    before = sum(sum(process.cpu_times()[:2]) for _, process in started)
    with ExitStack() as quotas:
        for _, process in started if part is not None else ():
            quotas.enter_context(quota(process.pid, part or 1.0))
        rate = read_by_consume(started[0][0], cells)
        used = sum(sum(process.cpu_times()[:2]) for _, process in started) - before
        if part is not None:
            instance.end_gateways()
    return rate, used / cells * 1e6
