"""Delivery of a new cell: from its acknowledgement to the consumer that has it, through an embedded
store and through a MariaDB cluster.

The runs are those of ``put-to-consumer`` and ``mysql-put-to-consumer``: 500 single puts a second,
spread evenly, confluent-kafka's ``poll`` at the other end; percentiles over all puts of all runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from benchmarks import Figure, at_most
from benchmarks.mysql_put_to_consumer import run_mariadb
from benchmarks.put_to_consumer import Passage, passage_figures, run_embedded

SECONDS = 10.0
WARM_UP_S = 2.0
RUNS = 2
P99: Final = {"embedded": at_most(5.0), "MariaDB": at_most(20.0)}
_RUN: Final[dict[str, Callable[[float], list[Passage]]]] = {
    "embedded": run_embedded,
    "MariaDB": run_mariadb,
}


def figures(
    seconds: float = SECONDS,
    runs: int = RUNS,
    warm_up_s: float = WARM_UP_S,
    stores: Sequence[str] = ("embedded", "MariaDB"),
) -> Iterator[Figure]:
    """Measures; see the module."""
    for store in stores:
        yield from passage_figures(
            f"gateway-latency {store}",
            [_RUN[store](seconds) for _ in range(runs)],
            warm_up_s,
            None,
            P99[store],
        )
