"""Queries of an index with a shard field and a range of time, through HTTP, from eight callers, beside reads of one cell by its key through the same worker.

``index-query``: 20 rows of one driver, ``fresh``, the worker in a process of its own, each caller as well over one connection; embedded and on MariaDB.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

from benchmarks import Figure, at_least, at_most
from benchmarks._indexes import STORES, create, driver, fill, index_workers, open_store, place_of, trip, wait_until_current
from benchmarks._processes import Process
from store.client import Client
from store.server.worker import run_worker

CELLS = 1_000_000
CALLERS = 8
SECONDS = 5.0
ROWS = 20
RATE = at_least(2_000)
P99_MS = at_most(10)


def figures(count: int = CELLS, seconds: float = SECONDS, stores: Sequence[str] = STORES) -> Iterator[Figure]:
    """Measures; see the module."""
    for kind in stores:
        with place_of(kind) as place, open_store(place) as store, ExitStack() as running:
            fill(store, count)
            with ExitStack() as building:
                for worker in index_workers(place, 2):
                    building.enter_context(worker)
                create(store)
                wait_until_current(store)
            served = running.enter_context(Process(_serve, place=place))
            url = f"http://127.0.0.1:{served.pipe.recv()}"
            reads, _ = _measure(url, seconds, lambda client, number: client.get_cell(trip(number % count)[0], "BASE", 1))
            for mode in ("fresh", "fast"):
                rate, times = _measure(url, seconds, lambda client, number, mode=mode: _query(client, number, mode))  # type: ignore[misc]
                fresh = mode == "fresh"
                yield Figure(f"index-query {kind} {mode} rate", rate, "queries/s", "reads of one cell", reads, RATE if fresh else None)
                yield Figure(f"index-query {kind} {mode} p50", times[len(times) // 2] * 1e3, "ms")
                yield Figure(f"index-query {kind} {mode} p99", times[len(times) * 99 // 100] * 1e3, "ms", limit=P99_MS if fresh else None)


def _query(client: Client, number: int, mode: Any) -> None:
    client.query_index("trips_by_driver", driver(number), [("at", ">=", "2019-03-05T00:00:00Z")], order_by="at", limit=ROWS, mode=mode)


def _measure(url: str, seconds: float, call: Callable[[Client, int], object]) -> tuple[float, list[float]]:
    """Calls a second of all callers together, and how long each took, in order."""
    times: list[float] = []

    def run(caller: int) -> None:
        chosen, mine = random.Random(caller), []
        with Client(url, "trips") as client:
            call(client, 0)
            end_s = time.monotonic() + seconds
            while (begun_s := time.monotonic()) < end_s:
                call(client, chosen.randrange(1_000_000))
                mine.append(time.monotonic() - begun_s)
        times.extend(mine)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(CALLERS)]
    begun_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(times) / (time.monotonic() - begun_s), sorted(times)


def _serve(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (stop.wait(), ended.set()), daemon=True).start()
    with open_store(settings["place"]) as store:
        run_worker(store, "127.0.0.1", 0, stop=ended, on_started=connection.send)
