"""From a put's acknowledgement to a Kafka consumer on another host, with wake-ups between the hosts
and without.

Three hosts, which are network namespaces of this machine, and clients on a fourth. Each of the
three has a MariaDB node, the worker is on the first host, the gateway on the second; all of it with
TLS.
``PUTS_PER_S`` single puts a second are spread evenly; the consumer is confluent-kafka's ``poll`` at
the gateway. Runs with wake-ups and without take turns; percentiles are over all puts of all runs.
A network of one machine has no way to go: the figures are the system's own part.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks import Figure
from benchmarks._processes import Process
from benchmarks.put_http import taxi_cells
from benchmarks.put_to_consumer import (
    ARRIVAL_TIMEOUT_S,
    Passage,
    consume,
    passages_of,
    percentile,
    put_evenly,
)
from tests.support.spread_instance import spread_instance

PUTS_PER_S = 100
SECONDS = 12.0
WARM_UP_S = 2.0
RUNS = 2
CONNECTED_S = 8.0
"""Until the gateway is connected to the worker: its address is read every two seconds."""


def figures(
    seconds: float = SECONDS,
    runs: int = RUNS,
    warm_up_s: float = WARM_UP_S,
    connected_s: float = CONNECTED_S,
) -> Iterator[Figure]:
    """Measures; see the module."""
    took_ms: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(runs):
        for wakeups, found in took_ms.items():
            run = _run(seconds, connected_s, wakeups=wakeups)
            found += [
                (each.received - each.acknowledged) * 1e3
                for each in run
                if each.started - run[0].started >= warm_up_s
            ]
    woken, polled = sorted(took_ms[True]), sorted(took_ms[False])
    for percent in (50, 99):
        yield Figure(
            f"wakeups p{percent}",
            percentile(woken, percent),
            "ms",
            "without wake-ups",
            percentile(polled, percent),
        )


def _run(seconds: float, connected_s: float, *, wakeups: bool) -> list[Passage]:
    cells = taxi_cells(max(1, int(PUTS_PER_S * seconds)))
    with (
        spread_instance(
            wakeups=wakeups, billing=False, zookeeper=False, workers="a", gateways="b"
        ) as system,
        Process(
            consume,
            bootstrap=system.bootstrap("b"),
            records=len(cells) + 1,
            client=system.kafka_client,
        ) as consumer,
        system.client("a") as client,
    ):
        client.put_cell(cells[0][0], "WARM_UP", 1, {})
        consumer.told()
        time.sleep(connected_s)
        sent = put_evenly(client, cells, PUTS_PER_S)
        return passages_of(sent, consumer.told(ARRIVAL_TIMEOUT_S))
