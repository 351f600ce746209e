"""The first export of a log into Apache Kafka: cells a second from an embedded store and from MariaDB, with the CPU and the memory that it takes.

``CELLS`` taxi cells in 16 shards, one exporter as it comes, one broker on the same machine. The limit is five times the initial snapshot of Debezium 3.3 on
Kafka Connect, measured on such a machine from the same MariaDB: 14,400 rows/s. The time runs from the exporter's start to its last commit.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from benchmarks import Figure, at_least
from benchmarks._export import export
from benchmarks._kafka_broker import JarsUnavailable, kafka_broker
from benchmarks._mariadb_instance import mariadb_instance
from benchmarks._processes import Process, Worker
from benchmarks.gateway_read import PUT_CELLS
from benchmarks.put_http import taxi_cells
from store.client import Client

CELLS = 500_000
RUNS = 1
DEBEZIUM_ROWS_PER_S = 14_400
BACKFILL = at_least(5 * DEBEZIUM_ROWS_PER_S)
EXPORT_TIMEOUT_S = 600.0


def figures(cells: int = CELLS, runs: int = RUNS, *, with_mariadb: bool = True) -> Iterator[Figure]:
    """Measures; see the module. Raises RuntimeError where no broker, or no MariaDB, can be had."""
    for where in ("embedded", "mariadb")[: 1 + with_mariadb]:
        found = [_run(where, cells) for _ in range(runs)]
        rates, cpu, memory = (statistics.median(column) for column in zip(*found, strict=True))
        yield Figure(f"export-backfill {where}", rates, "cells/s", "Debezium's initial snapshot, elsewhere", DEBEZIUM_ROWS_PER_S, BACKFILL)
        yield Figure(f"export-backfill {where} cpu", cpu, "µs/cell")
        yield Figure(f"export-backfill {where} memory", memory, "MiB")


def _run(where: str, cells: int) -> tuple[float, float, float]:
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        if where == "mariadb":
            instance = stack.enter_context(mariadb_instance(semi_sync=False))
            url, settings = instance.url, {"config": str(instance.config)}
        else:
            url, settings = stack.enter_context(Worker(directory)).url, {"directory": directory}
        with Client(url, "trips", timeout_s=120) as client:
            remaining = iter(taxi_cells(cells))
            while batch := list(islice(remaining, PUT_CELLS)):
                for result in client.put_cells(batch):
                    result.or_raise()
        try:
            bootstrap = stack.enter_context(kafka_broker(Path(directory)))
        except JarsUnavailable as reason:
            raise RuntimeError(f"no Kafka: {reason}") from reason
        exporter = stack.enter_context(Process(export, bootstrap=bootstrap, cells=cells, **settings))
        exporter.told()
        seconds, cpu_s = exporter.told(EXPORT_TIMEOUT_S)
        return cells / seconds, cpu_s / cells * 1e6, exporter.rss_bytes() / 2**20
