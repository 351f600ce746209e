"""One client whose callers put single cells, with shared requests and without.

``client threads``: 64 threads; ``client tasks``: 256 tasks of one event loop; ``client alone``: one
thread. Each through one client whose puts share requests, beside one whose puts do not; embedded
and on MariaDB, a worker in a process of its own. Beside both: an autocommit INSERT per cell, from
as many connections, rows ready made: through ``sqlite3`` (which lets one write at a time) and
PyMySQL. Runs are interleaved; the figures are medians.
"""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import Figure, at_least, at_most
from benchmarks._mariadb import mariadb
from benchmarks._processes import Process, Worker
from benchmarks.mysql_put import (
    empty_table,
    kept_from_collector,
    open_engine,
    raw_rows,
    raw_single_run,
    renamed,
    serve,
    single_run,
)
from benchmarks.put_http import Put, taxi_cells
from cellfeed.store.http.async_client import AsyncClient
from cellfeed.store.http.client import Client

CELLS = 60_000
"""More than any run puts in ``SINGLE_S``."""
RUNS = 3
SINGLE_S = 3.0
THREADS = 64
TASKS = 256

Run = tuple[list[float], float]
"""The seconds of each put, and cells a second."""


def figures(count: int = CELLS, runs: int = RUNS, single_s: float = SINGLE_S) -> Iterator[Figure]:
    """Measures; see the module."""
    trips = [cell[3] for cell in taxi_cells(count)]
    yield from _figures("embedded", trips, runs, single_s, _Embedded())
    with mariadb() as server:
        empty_table(server)
        open_engine(server).close()  # makes the datastore
        with Process(serve, url=server.url) as worker:
            url = f"http://127.0.0.1:{worker.told()}"
            yield from _figures("MariaDB", trips, runs, single_s, _OnMariaDB(server, url))


class _Embedded:
    def urls(self, opened: ExitStack) -> str:
        directory = opened.enter_context(tempfile.TemporaryDirectory())
        return opened.enter_context(Worker(directory)).url

    def beside(self, cells: Sequence[Put], callers: int, single_s: float) -> Run:
        rows = {cell[0]: row for cell, row in zip(cells, raw_rows(cells), strict=True)}
        with tempfile.TemporaryDirectory() as directory, ExitStack() as opened:
            connections = [
                opened.enter_context(closing(_sqlite(Path(directory)))) for _ in range(callers)
            ]
            return single_run(
                cells,
                callers,
                single_s,
                lambda caller: lambda cell: connections[caller].execute(_INSERT, rows[cell[0]]),
            )


class _OnMariaDB:
    def __init__(self, server: Any, url: str) -> None:
        self._server = server
        self._url = url

    def urls(self, _opened: ExitStack) -> str:
        return self._url

    def beside(self, cells: Sequence[Put], callers: int, single_s: float) -> Run:
        return [], raw_single_run(self._server, cells, callers, single_s)


def _figures(
    where: str,
    trips: Sequence[dict[str, Any]],
    runs: int,
    single_s: float,
    place: _Embedded | _OnMariaDB,
) -> Iterator[Figure]:
    found: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in range(runs):
        for case, callers in (("threads", THREADS), ("tasks", TASKS), ("alone", 1)):
            for sharing in (True, False):
                with ExitStack() as opened:
                    url = place.urls(opened)
                    cells = renamed(trips, f"{where}-{case}-{sharing}-{run}")
                    put_all = _in_tasks if case == "tasks" else _in_threads
                    one = put_all(url, cells, callers, single_s, sharing)
                    found[case, "shared" if sharing else "alone"].append(one)
            cells = renamed(trips, f"{where}-{case}-beside-{run}")
            found[case, "INSERTs"].append(place.beside(cells, min(callers, THREADS), single_s))
    for case in ("threads", "tasks", "alone"):
        name = f"client {case}, {where}"
        without = _rate(found[case, "alone"])
        yield Figure(f"{name}, without sharing", without, "cells/s")
        yield Figure(f"{name}, INSERTs", _rate(found[case, "INSERTs"]), "cells/s")
        shared = _rate(found[case, "shared"])
        if case == "alone":
            p50s = {kind: _p50_ms(found[case, kind]) for kind in ("shared", "alone")}
            limit = at_most(1.02 * p50s["alone"])
            yield Figure(f"{name}, p50", p50s["shared"], "ms", "without", p50s["alone"], limit)
        else:
            limit = at_least(3 * without)
            yield Figure(f"{name}, shared", shared, "cells/s", "without", without, limit)


def _rate(runs: Sequence[Run]) -> float:
    return statistics.median(rate for _, rate in runs)


def _p50_ms(runs: Sequence[Run]) -> float:
    return statistics.median(statistics.median(seconds) for seconds, _ in runs) * 1e3


def _in_threads(
    url: str, cells: Sequence[Put], callers: int, single_s: float, sharing: bool
) -> Run:
    with Client(url, "trips", share_requests=sharing) as client:
        put: Callable[[Put], object] = lambda cell: client.put_cell(*cell)  # noqa: E731
        return single_run(cells, callers, single_s, lambda _: put)


def _in_tasks(url: str, cells: Sequence[Put], callers: int, single_s: float, sharing: bool) -> Run:
    latencies: list[float] = []

    async def call(client: AsyncClient, share: Sequence[Put], ends: float) -> None:
        for cell in share:
            started = time.perf_counter()
            if started > ends:
                break
            await client.put_cell(*cell)
            latencies.append(time.perf_counter() - started)

    async def call_all() -> float:
        async with AsyncClient(url, "trips", share_requests=sharing) as client:
            started = time.perf_counter()
            async with asyncio.TaskGroup() as tasks:
                for caller in range(callers):
                    tasks.create_task(call(client, cells[caller::callers], started + single_s))
            return time.perf_counter() - started

    with kept_from_collector(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        seconds = runner.run(call_all())
    return latencies, len(latencies) / seconds


_INSERT = "INSERT INTO cell (row_key, column_name, ref_key, body) VALUES (?, ?, ?, ?)"


def _sqlite(directory: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        directory / "beside.sqlite3", isolation_level=None, timeout=60, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS cell (added_id INTEGER PRIMARY KEY, row_key BLOB, column_name"
        " TEXT, ref_key INTEGER, body BLOB, UNIQUE (row_key, column_name, ref_key))"
    )
    return connection
