"""The cost of a consumer of 4,096 partitions beside one of 16, each with a client of every kind:
librdkafka, which names all partitions in each fetch, and a client with a fetch session (KIP-227),
as Java's.

Worker, gateway, consumer and the putting program are processes over one embedded store with so many
shards; all four cases are measured in one run. ``first record``: from the consumer's first request
for its offsets to the first record, over a store with ``CELLS`` cells. ``put to consumer``: from
the acknowledgement of a put to its record, ``PUTS_PER_S`` a second for ``SECONDS``, the first
``WARM_UP_S`` left out. ``CPU for a put`` is that of the gateway's process while puts come. Its
``idle CPU``, in per cent of a core, is its use while the consumer waits and nothing comes. The
``client idle CPU`` is that of the consumer: a part of librdkafka's cost is its own.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import Figure, at_most
from benchmarks._partition_consumers import CLIENTS
from benchmarks._processes import Gateway, Process, Worker
from benchmarks.put_http import taxi_cells
from benchmarks.put_to_consumer import ARRIVAL_TIMEOUT_S, percentile, put_evenly
from cellfeed.store.datastore import Datastore
from cellfeed.store.http.client import Client

SHARDS = (16, 4_096)
CELLS = 1_000
PUTS_PER_S = 200
SECONDS = 10.0
WARM_UP_S = 2.0
IDLE_S = 5.0
RATIO = at_most(2.0)
FIRST_RECORD = at_most(1.0)
IDLE = at_most(1.0)


class _Cost(NamedTuple):
    first_record_s: float
    p50_ms: float
    p99_ms: float
    cpu_for_a_put_ms: float
    idle_percent: float
    client_idle_percent: float


def figures(
    seconds: float = SECONDS,
    shards: Sequence[int] = SHARDS,
    cells: int = CELLS,
    idle_s: float = IDLE_S,
    warm_up_s: float = WARM_UP_S,
) -> Iterator[Figure]:
    """Measures; see the module."""
    for client in CLIENTS:
        costs = [_cost(client, count, seconds, cells, idle_s, warm_up_s) for count in shards]
        few = costs[0]
        for count, cost in zip(shards, costs, strict=True):
            case = f"gateway-partitions {client}, {count}"
            is_many = count != shards[0]
            yield Figure(f"{case} first record", cost.first_record_s, "s", limit=FIRST_RECORD)
            for name, value, beside in (
                ("p50", cost.p50_ms, few.p50_ms),
                ("p99", cost.p99_ms, few.p99_ms),
            ):
                yield Figure(f"{case} put to consumer {name}", value, "ms")
                if is_many:
                    yield Figure(f"{case} {name} ÷ {shards[0]}", value / beside, "×", limit=RATIO)
            yield Figure(f"{case} CPU for a put", cost.cpu_for_a_put_ms, "ms")
            yield Figure(f"{case} idle CPU", cost.idle_percent, "% of a core", limit=IDLE)
            yield Figure(f"{case} client idle CPU", cost.client_idle_percent, "% of a core")


def _cost(
    client: str, shards: int, seconds: float, cells: int, idle_s: float, warm_up_s: float
) -> _Cost:
    there = taxi_cells(cells + int(PUTS_PER_S * seconds))
    with tempfile.TemporaryDirectory() as directory:
        with Datastore.open_embedded(Path(directory), shards=shards) as datastore:
            for result in datastore.put_cells(there[:cells]):
                result.or_raise()
        with (
            Worker(directory, shards) as worker,
            Gateway(directory, shards) as gateway,
            Process(
                CLIENTS[client],
                bootstrap=gateway.bootstrap,
                before=cells,
                records=len(there),
            ) as consumer,
            Client(worker.url, "trips") as http,
        ):
            first_record_s: float = consumer.told(ARRIVAL_TIMEOUT_S * 4)
            consumer.told(ARRIVAL_TIMEOUT_S)  # it has all that was there
            time.sleep(1)
            idle_percent, client_idle_percent = _cpu_percents((gateway, consumer), idle_s)
            before_s = gateway.cpu_seconds()
            sent = put_evenly(http, there[cells:], PUTS_PER_S)
            received: dict[str, float] = consumer.told(ARRIVAL_TIMEOUT_S)
            cpu_s = gateway.cpu_seconds() - before_s
    begun = min(started for started, _ in sent.values())
    latency = sorted(
        (received[key] - acknowledged) * 1e3
        for key, (started, acknowledged) in sent.items()
        if started - begun >= warm_up_s
    )
    return _Cost(
        first_record_s,
        percentile(latency, 50),
        percentile(latency, 99),
        cpu_s / len(sent) * 1e3,
        idle_percent,
        client_idle_percent,
    )


def _cpu_percents(processes: Sequence[Process], seconds: float) -> list[float]:
    before, started = [each.cpu_seconds() for each in processes], time.monotonic()
    time.sleep(seconds)
    took_s = time.monotonic() - started
    return [
        (each.cpu_seconds() - then) / took_s * 100
        for each, then in zip(processes, before, strict=True)
    ]
