"""From a put to its entry in the index, at a steady rate of single puts; and the cost of one more
index in a put.

``index-lag``: from when the put came back to when another process's entry is there; embedded and on
one durable MariaDB server, with an index worker in a process of its own. One thread looks for all
entries that are awaited, a millisecond after the last look: one for each would cost more than the
index. ``worker CPU`` is the index worker's use, so that the figure can be read on a busy machine.
``put cost``: the time of a put beside an index worker, beside the same without one.
"""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from benchmarks import Figure, at_most
from benchmarks._indexes import (
    STORES,
    create,
    index_workers,
    open_store,
    place_of,
    trip,
    wait_until_current,
)
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.index_values import Encoded
from cellfeed.store.indexes.values import encoder
from cellfeed.store.indexes.version import IndexVersion

PUTS_PER_S = 500.0
CALLERS = 8
SECONDS = 6.0
WARM_UP_S = 2.0
P99_MS = {"embedded": at_most(10), "MariaDB": at_most(20)}
_LOOK_S = 0.001
_ONE_IN = 10
"""Of so many puts one is looked for."""


def figures(
    seconds: float = SECONDS, warm_up_s: float = WARM_UP_S, stores: Sequence[str] = STORES
) -> Iterator[Figure]:
    """Measures; see the module."""
    for kind in stores:
        with place_of(kind) as place, open_store(place) as store, ExitStack() as running:
            bare, _ = _run(store, None, 0, seconds)
            version = create(store)
            [worker] = [running.enter_context(each) for each in index_workers(place)]
            wait_until_current(store)
            _run(store, None, 1_000_000, warm_up_s)
            before_s = worker.cpu_seconds()
            puts, lags = _run(store, version, 2_000_000, seconds)
            worker_us = (worker.cpu_seconds() - before_s) / len(puts) * 1e6
            yield Figure(f"index-lag {kind} p50", lags[len(lags) // 2] * 1e3, "ms")
            yield Figure(
                f"index-lag {kind} p99", lags[len(lags) * 99 // 100] * 1e3, "ms", limit=P99_MS[kind]
            )
            yield Figure(f"index-lag {kind} worker CPU", worker_us, "µs/cell")
            yield Figure(
                f"index-lag {kind} put cost",
                statistics.median(puts) * 1e3,
                "ms",
                "without an index",
                statistics.median(bare) * 1e3,
            )


def _run(
    store: Datastore, version: IndexVersion | None, first: int, seconds: float
) -> tuple[list[float], list[float]]:
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
        awaited: dict[tuple[int, Encoded, bytes], float] = {}
        ended = False
        while version is not None and (awaited or not ended):
            while not ended and (not awaited or not done.empty()):
                if (put_cell := done.get()) is None:
                    ended = True
                else:
                    row_key, _, _, body = trip(put_cell[0])
                    value = encoder("uuid")(body["driver"])
                    awaited[version.shard_of_value(value), value, row_key.bytes] = put_cell[1]
            places = list(awaited)
            entries = store.engine.indexes.find(version.table, places) if places else []
            now_s = time.monotonic()
            lags.extend(
                now_s - awaited.pop(place)
                for place, entry in zip(places, entries, strict=True)
                if entry is not None
            )
            time.sleep(_LOOK_S)

    threads = [threading.Thread(target=put, args=(caller,)) for caller in range(CALLERS)]
    looker = threading.Thread(target=look)
    for thread in (*threads, looker):
        thread.start()
    for thread in threads:
        thread.join()
    done.put(None)
    looker.join()
    return puts, sorted(lags)
