"""From a put to its entry in the index, at a steady rate of single puts; and what one more index costs a put.

``index-lag``: from when the put came back to when another process's entry is there, looked for every half millisecond; embedded and on one durable MariaDB
server, with an index worker in a process of its own. ``put cost``: the time of a put beside an index worker, beside the same without one.
"""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from benchmarks import Figure, at_most
from benchmarks._indexes import STORES, create, index_workers, open_store, place_of, trip, wait_until_current
from store.datastore import Datastore
from store.indexes.values import encoder
from store.indexes.version import IndexVersion

PUTS_PER_S = 500.0
CALLERS = 8
SECONDS = 6.0
WARM_UP_S = 2.0
P99_MS = {"embedded": at_most(10), "MariaDB": at_most(20)}
_LOOK_S = 0.0005
_ONE_IN = 10
"""Of so many puts one is looked for."""


def figures(seconds: float = SECONDS, warm_up_s: float = WARM_UP_S, stores: Sequence[str] = STORES) -> Iterator[Figure]:
    """Measures; see the module."""
    for kind in stores:
        with place_of(kind) as place, open_store(place) as store, ExitStack() as running:
            bare, _ = _run(store, None, 0, seconds)
            version = create(store)
            for worker in index_workers(place):
                running.enter_context(worker)
            wait_until_current(store)
            _run(store, None, 1_000_000, warm_up_s)
            puts, lags = _run(store, version, 2_000_000, seconds)
            yield Figure(f"index-lag {kind} p50", lags[len(lags) // 2] * 1e3, "ms")
            yield Figure(f"index-lag {kind} p99", lags[len(lags) * 99 // 100] * 1e3, "ms", limit=P99_MS[kind])
            yield Figure(f"index-lag {kind} put cost", statistics.median(puts) * 1e3, "ms", "without an index", statistics.median(bare) * 1e3)


def _run(store: Datastore, version: IndexVersion | None, first: int, seconds: float) -> tuple[list[float], list[float]]:
    """How long the puts took, and the entries, in order."""
    puts: list[float] = []
    lags: list[float] = []
    done: queue.SimpleQueue[tuple[int, float] | None] = queue.SimpleQueue()
    begun_s = time.monotonic()

    def put(caller: int) -> None:
        for number in range(caller, int(seconds * PUTS_PER_S), CALLERS):
            time.sleep(max(0.0, begun_s + number / PUTS_PER_S - time.monotonic()))
            put_s = time.monotonic()
            store.put_cell(*trip(first + number))
            back_s = time.monotonic()
            puts.append(back_s - put_s)
            if version is not None and number % _ONE_IN == 0:
                done.put((first + number, back_s))

    def look() -> None:
        while (found := done.get()) is not None:
            assert version is not None
            number, back_s = found
            row_key, _, _, body = trip(number)
            value = encoder("uuid")(body["driver"])
            place = version.shard_of_value(value), value, row_key.bytes
            while store.engine.indexes.find(version.table, [place]) == [None]:
                time.sleep(_LOOK_S)
            lags.append(time.monotonic() - back_s)

    threads = [threading.Thread(target=put, args=(caller,)) for caller in range(CALLERS)]
    lookers = [threading.Thread(target=look) for _ in range(CALLERS)]
    for thread in (*threads, *lookers):
        thread.start()
    for thread in threads:
        thread.join()
    for _ in lookers:
        done.put(None)
    for thread in lookers:
        thread.join()
    return puts, sorted(lags)
