"""Puts over TLS with a token, beside the same puts in plain text without one.

``put-http-secure``: taxi bodies through HTTP to the embedded store, as ``put-http`` has them. The
worker listens with a certificate and asks for credentials; the client shows a token. Beside it: the
same worker without both. Runs are interleaved; the figures are medians. The last figure is the
cost: the difference of both rates in per cent of the plain one.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks import Figure, at_most
from benchmarks._processes import Worker
from benchmarks._threads import in_threads
from benchmarks.put_http import BATCH_CALLERS, BATCH_CELLS, Put, taxi_cells
from cellfeed.store.http.client import Client

CELLS = 40_000
RUNS = 5
SINGLE_SECONDS = 3.0
COST = at_most(15)
SINGLE_CALLERS = 16


def figures(
    count: int = CELLS, runs: int = RUNS, single_s: float = SINGLE_SECONDS
) -> Iterator[Figure]:
    """Measures; see the module."""
    cells = taxi_cells(count)
    runs_by_name: dict[str, Callable[[bool], float]] = {
        "batch": partial(_batches, cells),
        f"single, {SINGLE_CALLERS} callers": partial(_singles, cells, single_s),
    }
    for name, run in runs_by_name.items():
        secured, plain = [], []
        for _ in range(runs):
            secured.append(run(True))
            plain.append(run(False))
        with_tls, without = statistics.median(secured), statistics.median(plain)
        yield Figure(
            f"put-http-secure {name}", with_tls, "cells/s", "without TLS and token", without
        )
        cost = (1 - with_tls / without) * 100
        yield Figure(f"put-http-secure {name} cost", cost, "%", limit=COST)


def _batches(cells: Sequence[Put], secure: bool) -> float:
    batches = [cells[start : start + BATCH_CELLS] for start in range(0, len(cells), BATCH_CELLS)]
    with ExitStack() as running:
        client = _client(running, secure)
        client.put_cells(cells[:1])

        def call(caller: int) -> None:
            for batch in batches[caller::BATCH_CALLERS]:
                for result in client.put_cells(batch):
                    result.or_raise()

        return len(cells) / in_threads(call, BATCH_CALLERS)


def _singles(cells: Sequence[Put], single_s: float, secure: bool) -> float:
    taken, lock, puts = iter(cells), threading.Lock(), 0
    with ExitStack() as running:
        client = _client(running, secure)
        client.put_cells(cells[-64:])
        ends = time.perf_counter() + single_s

        def call(_caller: int) -> None:
            nonlocal puts
            mine = 0
            while time.perf_counter() < ends:
                with lock:
                    cell = next(taken, None)
                if cell is None:
                    break
                client.put_cell(*cell)
                mine += 1
            with lock:
                puts += mine

        seconds = in_threads(call, SINGLE_CALLERS)
        return puts / seconds


def _client(running: ExitStack, secure: bool) -> Client:
    directory = Path(running.enter_context(tempfile.TemporaryDirectory()))
    worker = running.enter_context(Worker(directory, secure=secure))
    return running.enter_context(Client(worker.url, "trips", share_requests=False, **worker.access))
