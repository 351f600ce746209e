"""Puts to one durable MariaDB master, beside PyMySQL inserting the same rows with nothing around
it.

``mysql-put batch``: taxi bodies in calls of ``BATCH_CELLS`` from ``BATCH_CALLERS`` callers of a
datastore in process. Beside it: multi-row INSERTs of the same rows, bodies encoded beforehand,
through ``executemany``, the same unique key, transactions of the same size, an AUTO_INCREMENT key.
Both continue where ``FILLED`` such rows are already: while a table is small, InnoDB makes its file
longer by a page a time; a store of 64 tables would be measured by that. ``mysql-put single``: one
cell a call from 64 and from 256 callers, spread over ``SHARDS`` shards, through the writer.
``callers`` are threads; ``coroutines`` are callers in one event loop, as a worker's requests are.
Beside both: an autocommit INSERT per cell through PyMySQL from as many threads, a connection each,
rows and bodies ready made; into one table that has ``FILLED`` rows and more; ids by AUTO_INCREMENT,
which a tailer cannot follow without missing cells: the statements that one would write first. All
callers are in one process, here and beside. ``mysql-put HTTP``: one cell a call from 64 and from
256 threads of this process through the product's client; to a worker in a process of its own. Runs
are interleaved; the figures are medians. Objects that were made beforehand are kept from Python's
collector of cycles, for all of them.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import pymysql
import uvloop

from benchmarks import Figure, at_least
from benchmarks._mariadb import mariadb
from benchmarks._processes import Process
from benchmarks._threads import in_threads
from benchmarks.put_http import Put, taxi_cells
from cellfeed.store.cells.body_encoding import encode_bodies
from cellfeed.store.cells.cell import new_cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.http.client import Client
from cellfeed.store.http.server.commits import LoopCommits
from cellfeed.store.http.server.worker import run_worker
from tests.support.local_mariadb import MariaDB

SHARDS = 64
BATCH_CELLS = 5_000
"""The most that one transaction takes: with 64 shards still fewer than a hundred rows per
statement."""
BATCH_CALLERS = 3
"""Some prepare the next call while another's is being written."""
CELLS = 50_000
FILLED = 150_000
RUNS = 3
SINGLE_SECONDS = 2.0
BATCH_RATE = at_least(40_000)

_TABLE = (
    "CREATE TABLE beside.cell (added_id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, row_key"
    " BINARY(16) NOT NULL, column_name VARBINARY(128) NOT NULL, ref_key BIGINT NOT NULL, body"
    " MEDIUMBLOB NOT NULL, UNIQUE KEY triple (row_key, column_name, ref_key))"
)
_INSERT = "INSERT INTO beside.cell (row_key, column_name, ref_key, body) VALUES (%s, %s, %s, %s)"


def figures(
    count: int = CELLS,
    runs: int = RUNS,
    single_s: float = SINGLE_SECONDS,
    callers: Sequence[int] = (64, 256),
    filled: int = FILLED,
) -> Iterator[Figure]:
    """Measures; see the module."""
    trips = [body for *_, body in taxi_cells(count)]
    with mariadb() as server:
        rates: list[float] = []
        beside: list[float] = []
        empty_table(server)
        fills = -(-filled // count)
        for run in range(fills + runs):
            cells = renamed(trips, f"batch-{run}")
            rate, raw_rate = _batch_run(server, cells), _raw_batch_run(server, cells)
            if run >= fills:
                rates.append(rate)
                beside.append(raw_rate)
        yield Figure(
            "mysql-put batch",
            statistics.median(rates),
            "cells/s",
            "PyMySQL executemany, rows ready made",
            statistics.median(beside),
            BATCH_RATE,
        )
        for at_once in callers:
            yield from _single_figures(server, trips, at_once, runs, single_s)
        for at_once in callers:
            yield from _http_figures(server, trips, at_once, runs, single_s)


def _single_figures(
    server: MariaDB, trips: Sequence[dict[str, Any]], callers: int, runs: int, single_s: float
) -> Iterator[Figure]:
    threads, coroutines = _Runs(), _Runs()
    beside: list[float] = []
    for run in range(runs):
        with _datastore(server) as datastore:
            threads.add(
                single_run(
                    renamed(trips, f"threads-{callers}-{run}"),
                    callers,
                    single_s,
                    lambda _: lambda cell: datastore.put_cell(*cell),
                )
            )
            coroutines.add(
                _coroutine_run(
                    renamed(trips, f"coroutines-{callers}-{run}"), callers, single_s, datastore
                )
            )
        beside.append(
            raw_single_run(server, renamed(trips, f"single-{callers}-{run}"), callers, single_s)
        )
    for found, kind in (threads, "callers"), (coroutines, "coroutines"):
        case = f"mysql-put single, {callers} {kind}"
        yield Figure(
            f"{case} rate",
            statistics.median(found.rates),
            "cells/s",
            "autocommit INSERTs, as many connections",
            statistics.median(beside),
        )
        yield from _percentiles(case, found.latencies)


def _http_figures(
    server: MariaDB, trips: Sequence[dict[str, Any]], callers: int, runs: int, single_s: float
) -> Iterator[Figure]:
    found = _Runs()
    for run in range(runs):
        with (
            Process(serve, url=server.url) as worker,
            Client(f"http://127.0.0.1:{worker.told()}", "trips", share_requests=False) as client,
        ):
            cells = renamed(trips, f"http-{callers}-{run}")
            found.add(
                single_run(cells, callers, single_s, lambda _: lambda cell: client.put_cell(*cell))
            )
    case = f"mysql-put HTTP single, {callers} callers"
    yield Figure(f"{case} rate", statistics.median(found.rates), "cells/s")
    yield from _percentiles(case, found.latencies)


class _Runs:
    """Of one case: the seconds of every put, and the rate of each run."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.rates: list[float] = []

    def add(self, run: tuple[Sequence[float], float]) -> None:
        self.latencies += run[0]
        self.rates.append(run[1])


def _percentiles(case: str, latencies: Sequence[float]) -> Iterator[Figure]:
    ordered = sorted(latencies)
    yield Figure(f"{case} p50", ordered[len(ordered) // 2] * 1e3, "ms")
    yield Figure(f"{case} p99", ordered[len(ordered) * 99 // 100] * 1e3, "ms")


# --- ours -----------------------------------------------------------------------------------------


def open_engine(server: MariaDB) -> MySqlEngine:
    return MySqlEngine(MySqlServer(server.url), "trips", SHARDS, create=True)


def _datastore(server: MariaDB) -> Datastore:
    return Datastore(open_engine(server))


def _batch_run(server: MariaDB, cells: Sequence[Put]) -> float:
    batches = [cells[start : start + BATCH_CELLS] for start in range(0, len(cells), BATCH_CELLS)]
    with _datastore(server) as datastore:

        def call(caller: int) -> None:
            for batch in batches[caller::BATCH_CALLERS]:
                for result in datastore.put_cells(batch):
                    result.or_raise()

        return len(cells) / in_threads(call, BATCH_CALLERS)


def serve(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    with Datastore(MySqlEngine(MySqlServer(settings["url"]), "trips", SHARDS)) as datastore:
        run_worker(datastore, stop=stop, on_started=connection.send)


def single_run(
    cells: Sequence[Put],
    callers: int,
    single_s: float,
    put_of: Callable[[int], Callable[[Put], object]],
) -> tuple[list[float], float]:
    """Seconds of every put, and cells per second; ``put_of(caller)`` gives the function that this
    caller calls."""
    latencies: list[float] = []
    lock = threading.Lock()
    puts = [put_of(caller) for caller in range(callers)]
    shares = [cells[caller::callers] for caller in range(callers)]
    ends = 0.0

    def call(caller: int) -> None:
        mine: list[float] = []
        for cell in shares[caller]:
            started = time.perf_counter()
            if started > ends:
                break
            puts[caller](cell)
            mine.append(time.perf_counter() - started)
        with lock:
            latencies.extend(mine)

    with kept_from_collector():
        ends = time.perf_counter() + single_s
        seconds = in_threads(call, callers)
    return latencies, len(latencies) / seconds


def _coroutine_run(
    cells: Sequence[Put], callers: int, single_s: float, datastore: Datastore
) -> tuple[list[float], float]:
    """As :func:`single_run`; the callers are coroutines of one event loop, which wait for their
    commits as a worker's requests do."""
    latencies: list[float] = []
    shares = [cells[caller::callers] for caller in range(callers)]

    async def call(share: Sequence[Put], commits: LoopCommits, ends: float) -> None:
        for cell in share:
            started = time.perf_counter()
            if started > ends:
                break
            [result] = await commits.put([new_cell(*cell)])
            result.or_raise()
            latencies.append(time.perf_counter() - started)

    async def call_all() -> float:
        commits, started = LoopCommits(datastore), time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for share in shares:
                tasks.create_task(call(share, commits, started + single_s))
        return time.perf_counter() - started

    with kept_from_collector(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        seconds = runner.run(call_all())
    return latencies, len(latencies) / seconds


@contextmanager
def kept_from_collector() -> Iterator[None]:
    """A hundred thousand rows lie ready: the collector would go through them again and again, and
    find nothing."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


# --- beside ---------------------------------------------------------------------------------------


def _raw(server: MariaDB) -> pymysql.connections.Connection[Any]:
    return pymysql.connect(host="127.0.0.1", port=server.port, user="root", autocommit=True)


def empty_table(server: MariaDB) -> None:
    with closing(_raw(server)) as connection, connection.cursor() as cursor:
        for statement in ("DROP DATABASE IF EXISTS beside", "CREATE DATABASE beside", _TABLE):
            cursor.execute(statement)


def raw_rows(cells: Sequence[Put]) -> list[tuple[bytes, bytes, int, bytes]]:
    checked = [new_cell(*cell) for cell in cells]
    bodies = encode_bodies([cell.body_json for cell in checked])
    return [
        (cell.row_key, cell.column_name.encode(), cell.ref_key, body)
        for cell, body in zip(checked, bodies, strict=True)
    ]


def _raw_batch_run(server: MariaDB, cells: Sequence[Put]) -> float:
    rows = raw_rows(cells)
    with closing(_raw(server)) as connection, connection.cursor() as cursor:
        started = time.perf_counter()
        for start in range(0, len(rows), BATCH_CELLS):
            cursor.executemany(_INSERT, rows[start : start + BATCH_CELLS])
        return len(rows) / (time.perf_counter() - started)


def raw_single_run(server: MariaDB, cells: Sequence[Put], callers: int, single_s: float) -> float:
    rows = {cell[0]: row for cell, row in zip(cells, raw_rows(cells), strict=True)}
    with ExitStack() as opened:
        cursors = [
            opened.enter_context(opened.enter_context(closing(_raw(server))).cursor())
            for _ in range(callers)
        ]
        _, rate = single_run(
            cells,
            callers,
            single_s,
            lambda caller: lambda cell: cursors[caller].execute(_INSERT, rows[cell[0]]),
        )
    return rate


# --- both -----------------------------------------------------------------------------------------


def renamed(trips: Sequence[dict[str, Any]], name: str) -> list[Put]:
    """The trips under row keys that no other run has."""
    return [(uuid5(NAMESPACE_URL, f"{name}-{n}"), "BASE", 1, trip) for n, trip in enumerate(trips)]
