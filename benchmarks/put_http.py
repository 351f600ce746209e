"""Puts through HTTP to the embedded store, beside sqlite3 inserting the same rows.

``put-http batch``: taxi bodies in calls of ``BATCH_CELLS`` cells from ``BATCH_CALLERS`` callers,
worker and client each in a process of its own, durable (synchronous=FULL) on both sides. Beside it:
Python's ``sqlite3`` inserting the same rows, ready made, with the same unique key, in transactions
of the same size; in one process with nothing around it. Runs are interleaved; the figures are
medians. ``dictionary trained meanwhile``: as a configured worker does, it trains a dictionary of
the first cells, and stores the others with it. ``put-http single``: one cell a call, from 1 and
from 64 callers. ``worker CPU`` is the worker process's use, so that the figure can be read on a
busy machine.
"""

from __future__ import annotations

import csv
import json
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from benchmarks import Figure, at_least
from benchmarks._processes import Worker
from benchmarks._threads import in_threads
from cellfeed.store.http.client import Client

BATCH_CELLS = 2_000
"""The best of 500, 1,000 and 2,000, for both sides; 1,000 costs a tenth."""
BATCH_CALLERS = 3
"""Some prepare the next call while another's is being written."""
CELLS = 77_196
"""Twelve times the taxi trips of the data set, each time under other row keys: so many that the
first and last calls, which overlap with none, weigh little."""
RUNS = 5
SINGLE_SECONDS = 3.0
BATCH_RATE = at_least(40_000)

Put = tuple[UUID, str, int, dict[str, Any]]


def figures(
    count: int = CELLS, runs: int = RUNS, single_s: float = SINGLE_SECONDS
) -> Iterator[Figure]:
    """Measures; see the module."""
    cells = taxi_cells(count)
    rates, beside, cpu_us, trained = [], [], [], []
    for _ in range(runs):
        rate, cpu = batch_run(cells)
        rates.append(rate)
        cpu_us.append(cpu)
        beside.append(_sqlite_run(cells))
        trained.append(batch_run(cells, trains=True))
    yield Figure(
        "put-http batch",
        statistics.median(rates),
        "cells/s",
        "sqlite3, same rows and transactions",
        statistics.median(beside),
        BATCH_RATE,
    )
    yield Figure("put-http batch worker CPU", statistics.median(cpu_us), "µs/cell")
    without = "without a dictionary"
    for name, unit, values, others in (
        ("", "cells/s", [rate for rate, _ in trained], rates),
        (" worker CPU", "µs/cell", [cpu for _, cpu in trained], cpu_us),
    ):
        yield Figure(
            f"put-http batch, dictionary trained meanwhile{name}",
            statistics.median(values),
            unit,
            without,
            statistics.median(others),
        )
    for callers in (1, 64):
        seconds, rate, cpu = _single_run(cells, callers, single_s)
        ordered = sorted(seconds)
        case = f"put-http single, {callers} caller{'s' if callers > 1 else ''}"
        yield Figure(f"{case} p50", ordered[len(ordered) // 2] * 1e3, "ms")
        yield Figure(f"{case} p99", ordered[len(ordered) * 99 // 100] * 1e3, "ms")
        yield Figure(f"{case} rate", rate, "cells/s")
        yield Figure(f"{case} worker CPU", cpu, "µs/cell")


def taxi_cells(count: int) -> list[Put]:
    """Cells of the NYC taxi trips that the product ships, repeated under new row keys until there
    are ``count``."""
    path = Path(__file__).parent.parent / "cellfeed" / "data" / "taxis.csv"
    with path.open(newline="") as lines:
        trips = [
            {name: _value(text) for name, text in row.items()} for row in csv.DictReader(lines)
        ]
    return [
        (uuid5(NAMESPACE_URL, f"taxi-{n}"), "BASE", 1, trips[n % len(trips)]) for n in range(count)
    ]


def _value(text: str) -> object:
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text


def batch_run(cells: Sequence[Put], *, trains: bool = False) -> tuple[float, float]:
    """Cells a second, and microseconds of the worker's processor time per cell. ``trains``: the
    worker trains a dictionary of the first cells, and stores the others with it."""
    batches = [cells[start : start + BATCH_CELLS] for start in range(0, len(cells), BATCH_CELLS)]
    with (
        tempfile.TemporaryDirectory() as directory,
        Worker(directory, trains=trains) as worker,
        Client(worker.url, "trips", share_requests=False) as client,
    ):
        client.put_cells(cells[:1])
        cpu_before = worker.cpu_seconds()

        def call(caller: int) -> None:
            for batch in batches[caller::BATCH_CALLERS]:
                for result in client.put_cells(batch):
                    result.or_raise()

        seconds = in_threads(call, BATCH_CALLERS)
        cpu = worker.cpu_seconds() - cpu_before
    return len(cells) / seconds, cpu / len(cells) * 1e6


def _sqlite_run(cells: Sequence[Put]) -> float:
    with tempfile.TemporaryDirectory() as directory:
        connection = sqlite3.connect(Path(directory) / "beside.sqlite3", isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(
            "CREATE TABLE cell (added_id INTEGER PRIMARY KEY, row_key BLOB, column_name TEXT,"
            " ref_key INTEGER, body BLOB, UNIQUE (row_key, column_name, ref_key))"
        )
        rows = [
            (None, key.bytes, column, ref, json.dumps(body)) for key, column, ref, body in cells
        ]
        started = time.perf_counter()
        for start in range(0, len(rows), BATCH_CELLS):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "INSERT INTO cell VALUES (?, ?, ?, ?, ?)", rows[start : start + BATCH_CELLS]
            )
            connection.execute("COMMIT")
        seconds = time.perf_counter() - started
        connection.close()
    return len(cells) / seconds


def _single_run(
    cells: Sequence[Put], callers: int, single_s: float
) -> tuple[list[float], float, float]:
    """Latencies in seconds, cells a second, microseconds of the worker's processor time per
    cell."""
    taken = iter(cells)
    lock = threading.Lock()
    latencies: list[float] = []
    with (
        tempfile.TemporaryDirectory() as directory,
        Worker(directory) as worker,
        Client(worker.url, "trips", share_requests=False) as client,
    ):
        client.put_cells(
            cells[-64:]
        )  # the modules that a worker loads with its first group of many
        cpu_before = worker.cpu_seconds()
        ends = time.perf_counter() + single_s

        def call(_caller: int) -> None:
            mine: list[float] = []
            while (now := time.perf_counter()) < ends:
                with lock:
                    cell = next(taken, None)
                if cell is None:
                    break
                client.put_cell(*cell)
                mine.append(time.perf_counter() - now)
            with lock:
                latencies.extend(mine)

        seconds = in_threads(call, callers)
        cpu = worker.cpu_seconds() - cpu_before
    return latencies, len(latencies) / seconds, cpu / len(latencies) * 1e6
