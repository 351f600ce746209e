"""Building an index of cells that are there already, by two index workers, beside the same entries
inserted with nothing around it.

``index-build``: two workers that run, from the index's definition to where it answers queries;
embedded, and on one durable MariaDB server. Beside it, embedded: Python's ``sqlite3`` putting ready
made entries into the same tables, in transactions of the same size. Medians of the runs.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import Figure, at_least
from benchmarks._indexes import (
    DEFINITION,
    SHARDS,
    STORES,
    create,
    fill,
    index_workers,
    open_store,
    place_of,
    trip,
    wait_until_current,
)
from cellfeed.bridge.indexes.groups import BATCH_CELLS
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.index_values import Entry
from cellfeed.store.indexes.values import encoder
from cellfeed.store.indexes.version import IndexVersion

CELLS = 200_000
RUNS = 3
WORKERS = 2
RATE = at_least(40_000)


def figures(
    count: int = CELLS, runs: int = RUNS, stores: Sequence[str] = STORES
) -> Iterator[Figure]:
    """Measures; see the module."""
    for store in stores:
        rates, beside = [], []
        for _ in range(runs):
            rates.append(_build(store, count))
            if store == "embedded":
                beside.append(_inserts(count))
        yield Figure(
            f"index-build {store}",
            statistics.median(rates),
            "cells/s",
            "the same entries, sqlite3 alone" if beside else None,
            statistics.median(beside) if beside else None,
            RATE,
        )


def _build(kind: str, count: int) -> float:
    with place_of(kind) as place, open_store(place) as store, ExitStack() as running:
        fill(store, count)
        for worker in [running.enter_context(each) for each in index_workers(place, WORKERS)]:
            worker.told()  # it runs: to start an interpreter is no part of a build
        begun_s = time.monotonic()
        create(store)
        wait_until_current(store)
        return count / (time.monotonic() - begun_s)


def _inserts(count: int) -> float:
    with (
        tempfile.TemporaryDirectory() as directory,
        Datastore.open_embedded(Path(directory), "trips", SHARDS) as store,
    ):
        version = IndexVersion(DEFINITION, 1, SHARDS)
        encoders = [(field.name, encoder(field.type)) for field in DEFINITION.fields]
        store.engine.indexes.create(version.table)
        ready = []
        for start in range(0, count, BATCH_CELLS):
            trips = [trip(number) for number in range(start, min(count, start + BATCH_CELLS))]
            ready.append(
                version.by_shard(
                    Entry(
                        key.bytes,
                        True,
                        (1,),
                        tuple(encode(body[name]) for name, encode in encoders),
                    )
                    for key, _, _, body in trips
                )
            )
        begun_s = time.monotonic()
        for entries in ready:
            store.engine.indexes.apply(version.table, entries)
        return count / (time.monotonic() - begun_s)
