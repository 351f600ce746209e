"""The first export of a log into Apache Kafka: cells a second from MariaDB and from an embedded
store, with the CPU and the memory that it takes; and beside it the initial snapshot of Debezium on
Kafka Connect, from the same MariaDB into the same broker, in turns.

``CELLS`` taxi cells in 16 shards, one exporter as it comes, one broker on the same machine; medians
of ``RUNS`` runs of each. The limit is five times Debezium's rate, with less CPU a row and a quarter
of its memory. Debezium is as it comes, too: its own snapshot settings, Connect's own producer and
heap; its values are JSON without the schema in each, which is the cheapest that Connect has of
itself.

Time and CPU of both run from the first record in a topic, as a reader of the broker sees it, to the
last one: the exporter's to its last commit. So the time of their starts is in neither, and has
figures of its own: until the first record is there. (That of a transaction is in the topic before
the transaction is committed.) One export that is not counted comes first: a broker that has just
been started compiles itself during it. The broker's and MariaDB's CPU for the same rows is reported
too. Where Debezium's jars cannot be had, its rate on such a machine stands for it: 14,400 rows/s.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks import Figure, at_least, at_most
from benchmarks._debezium import START_TIMEOUT_S, debezium
from benchmarks._export import SHARDS, export, wait_first_record
from benchmarks._kafka_broker import JarsUnavailable, kafka_broker_process
from benchmarks._mariadb_instance import mariadb_instance
from benchmarks._processes import Process, Worker
from benchmarks.gateway_read import PUT_CELLS
from benchmarks.put_http import taxi_cells
from cellfeed.store.http.client import Client

CELLS = 500_000
EMBEDDED_CELLS = 200_000
RUNS = 3
DEBEZIUM_ROWS_PER_S = 14_400
TIMES_DEBEZIUM = 5
MEMORY_PART = 0.25
TIMEOUT_S = 600.0


class Copied(NamedTuple):
    """Rows a second, microseconds of CPU a row, resident mebibytes at the end. ``servers_cpu_us``:
    of MariaDB's master and the broker meanwhile. ``start_s``: the seconds to the first record, of
    Debezium from the start of its process, of the exporter from the opening of its datastore."""

    per_s: float
    cpu_us: float
    memory_mib: float
    servers_cpu_us: float
    start_s: float


def figures(
    cells: int = CELLS,
    embedded_cells: int = EMBEDDED_CELLS,
    runs: int = RUNS,
    *,
    with_mariadb: bool = True,
) -> Iterator[Figure]:
    """Measures; see the module. Raises RuntimeError where no broker, or no MariaDB, can be had."""
    try:
        if with_mariadb:
            yield from _from_mariadb(cells, runs)
        yield from _from_embedded(embedded_cells, runs)
    except JarsUnavailable as reason:
        raise RuntimeError(f"no Kafka: {reason}") from reason


def _from_mariadb(cells: int, runs: int) -> Iterator[Figure]:
    owns: list[Copied] = []
    peers: list[Copied] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        instance = stack.enter_context(mariadb_instance(semi_sync=False))
        _put(instance.url, cells)
        bootstrap, broker = stack.enter_context(kafka_broker_process(directory))
        servers = [broker, instance.master]
        _exported(cells, bootstrap, {"config": str(instance.config), "name": "warm-up"}, servers)
        with suppress(JarsUnavailable):
            for run in range(runs):
                owns.append(
                    _exported(
                        cells,
                        bootstrap,
                        {"config": str(instance.config), "name": f"trips-{run}"},
                        servers,
                    )
                )
                peers.append(
                    _snapshot(
                        cells,
                        directory,
                        bootstrap,
                        instance.servers[0].port,
                        f"debezium-{run}",
                        servers,
                    )
                )
    own, peer = _median(owns), _median(peers) if peers else None
    name, beside = "export-backfill mariadb", "Debezium's initial snapshot"
    if peer is None:
        yield Figure(
            name,
            own.per_s,
            "cells/s",
            f"{beside}, elsewhere",
            DEBEZIUM_ROWS_PER_S,
            at_least(TIMES_DEBEZIUM * DEBEZIUM_ROWS_PER_S),
        )
        yield Figure(f"{name} cpu", own.cpu_us, "µs/cell")
        yield Figure(f"{name} servers' cpu", own.servers_cpu_us, "µs/cell")
        yield Figure(f"{name} memory", own.memory_mib, "MiB")
        yield Figure(f"{name} start", own.start_s, "s")
        return
    yield Figure(
        name, own.per_s, "cells/s", beside, peer.per_s, at_least(TIMES_DEBEZIUM * peer.per_s)
    )
    yield Figure(f"{name} cpu", own.cpu_us, "µs/cell", beside, peer.cpu_us, at_most(peer.cpu_us))
    yield Figure(f"{name} servers' cpu", own.servers_cpu_us, "µs/cell", beside, peer.servers_cpu_us)
    yield Figure(
        f"{name} memory",
        own.memory_mib,
        "MiB",
        "Connect with it",
        peer.memory_mib,
        at_most(MEMORY_PART * peer.memory_mib),
    )
    yield Figure(f"{name} start", own.start_s, "s", beside, peer.start_s)


def _from_embedded(cells: int, runs: int) -> Iterator[Figure]:
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        _put(stack.enter_context(Worker(directory)).url, cells)
        bootstrap, broker = stack.enter_context(kafka_broker_process(Path(directory)))
        _exported(cells, bootstrap, {"directory": directory, "name": "warm-up"}, [broker])
        found = _median(
            [
                _exported(
                    cells, bootstrap, {"directory": directory, "name": f"trips-{run}"}, [broker]
                )
                for run in range(runs)
            ]
        )
    yield Figure(
        "export-backfill embedded",
        found.per_s,
        "cells/s",
        limit=at_least(TIMES_DEBEZIUM * DEBEZIUM_ROWS_PER_S),
    )
    yield Figure("export-backfill embedded cpu", found.cpu_us, "µs/cell")
    yield Figure("export-backfill embedded memory", found.memory_mib, "MiB")


def _put(url: str, cells: int) -> None:
    with Client(url, "trips", timeout_s=120) as client:
        remaining = iter(taxi_cells(cells))
        while batch := list(islice(remaining, PUT_CELLS)):
            for result in client.put_cells(batch):
                result.or_raise()


def _exported(
    cells: int, bootstrap: str, settings: dict[str, str], servers: Sequence[psutil.Process]
) -> Copied:
    with Process(export, bootstrap=bootstrap, cells=cells, **settings) as exporter:
        exporter.told()
        ordered_s = time.monotonic()
        begun_s = wait_first_record(bootstrap, settings["name"], TIMEOUT_S)
        begun_cpu_s, servers_begun_s = exporter.cpu_seconds(), _cpu_seconds(servers)
        seconds = exporter.told(TIMEOUT_S) - begun_s
        cpu_s, servers_s = (
            exporter.cpu_seconds() - begun_cpu_s,
            _cpu_seconds(servers) - servers_begun_s,
        )
        return Copied(
            cells / seconds,
            cpu_s / cells * 1e6,
            exporter.rss_bytes() / 2**20,
            servers_s / cells * 1e6,
            begun_s - ordered_s,
        )


def _snapshot(
    cells: int,
    directory: Path,
    bootstrap: str,
    port: int,
    prefix: str,
    servers: Sequence[psutil.Process],
) -> Copied:
    with debezium(directory, bootstrap, port, SHARDS, {}, prefix) as running:
        ordered_s = time.monotonic()
        begun_s = running.wait_rows(1, START_TIMEOUT_S)
        begun_cpu_s, servers_begun_s = running.cpu_seconds(), _cpu_seconds(servers)
        seconds = running.wait_rows(cells, TIMEOUT_S) - begun_s
        cpu_s, servers_s = (
            running.cpu_seconds() - begun_cpu_s,
            _cpu_seconds(servers) - servers_begun_s,
        )
        return Copied(
            cells / seconds,
            cpu_s / cells * 1e6,
            running.rss_bytes() / 2**20,
            servers_s / cells * 1e6,
            begun_s - ordered_s,
        )


def _cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    return sum(
        times.user + times.system for times in (process.cpu_times() for process in processes)
    )


def _median(runs: Sequence[Copied]) -> Copied:
    return Copied(*map(statistics.median, zip(*runs, strict=True)))
