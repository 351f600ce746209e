"""How fast `cellfeed check` looks at cells: every checksum, id, key and counter, and the database's
own check, by one process.

Embedded, and on one durable MariaDB server, each at a small size and at a large one. Beside it: a
scan of the same logs by the engine, which compares checksums as well. Medians of interleaved runs.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from benchmarks import Figure, at_least
from benchmarks._mariadb import mariadb
from benchmarks.put_http import taxi_cells
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.findings import Findings
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.integrity import check_node
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.sqlite.integrity import check_files
from cellfeed.store.limits import BATCH_CELLS_MAX, SCAN_CELLS_MAX

SIZES = (20_000, 400_000)
SHARDS = 4
RUNS = 3
RATE = at_least(200_000)
STORES = ("embedded", "MariaDB")


def figures(
    sizes: Sequence[int] = SIZES, runs: int = RUNS, stores: Sequence[str] = STORES
) -> Iterator[Figure]:
    """Measures; see the module."""
    for store in stores:
        for cells in sizes:
            with ExitStack() as opened:
                check, scan = (_embedded if store == "embedded" else _mariadb)(opened, cells)
                rates: dict[str, list[float]] = {"check": [], "scan": []}
                for _ in range(runs):
                    for name, what in (("check", check), ("scan", scan)):
                        began_s = time.perf_counter()
                        found = what()
                        rates[name].append(found / (time.perf_counter() - began_s))
                        if found != cells:
                            raise RuntimeError(f"{name}: {found} of {cells} cells were looked at")
            beside = statistics.median(rates["scan"])
            yield Figure(
                f"check {store} {cells} cells",
                statistics.median(rates["check"]),
                "cells/s",
                "a scan of the logs",
                beside,
                RATE,
            )


def _embedded(opened: ExitStack, cells: int) -> tuple[Callable[[], int], Callable[[], int]]:
    place = Path(opened.enter_context(tempfile.TemporaryDirectory()))
    datastore = opened.enter_context(Datastore.open_embedded(place, "trips", SHARDS))
    _fill(datastore, cells)

    def check() -> int:
        found = Findings()
        check_files(place / "trips", "trips", SHARDS, found)
        return _cells(found)

    return check, lambda: _scanned(datastore.engine)


def _mariadb(opened: ExitStack, cells: int) -> tuple[Callable[[], int], Callable[[], int]]:
    server = opened.enter_context(mariadb())
    engine = opened.enter_context(
        closing(MySqlEngine(MySqlServer(server.url), "trips", SHARDS, create=True))
    )
    _fill(Datastore(engine), cells)

    def check() -> int:
        found = Findings()
        check_node("c1/a", MySqlServer(server.url), Layout("trips", SHARDS), found)
        return _cells(found)

    return check, lambda: _scanned(engine)


def _fill(datastore: Datastore, cells: int) -> None:
    from uuid import NAMESPACE_URL, uuid5

    from cellfeed.store.cells.cell import new_cell

    trips = [body for *_, body in taxi_cells(min(cells, 50_000))]
    for start in range(0, cells, BATCH_CELLS_MAX):
        numbers = range(start, min(cells, start + BATCH_CELLS_MAX))
        datastore.put_new_cells(
            [
                new_cell(uuid5(NAMESPACE_URL, f"check-{n}"), "BASE", 1, trips[n % len(trips)])
                for n in numbers
            ]
        )


def _cells(found: Findings) -> int:
    if not found.well:
        raise RuntimeError(f"a store in good order has findings: {found.found[0]}")
    return found.cells


def _scanned(engine: Engine) -> int:
    read = 0
    for shard, head in engine.heads().items():
        location = head.log_start
        while cells := engine.scan(shard, location, SCAN_CELLS_MAX):
            read, location = read + len(cells), cells[-1].added_id + 1
    return read
