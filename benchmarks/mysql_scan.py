"""Log scans from MariaDB through the engine: cells as they are stored, and with their bodies
decoded; beside PyMySQL fetching the same rows.

``CELLS`` taxi cells in one shard; each run reads the whole log in steps of ``STEP_CELLS``, as a
reader of the log does. Beside it: the same steps as SELECTs through PyMySQL's cursor as it comes.
One client process, the server on the same machine. Runs are interleaved; the figures are medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import pymysql

from benchmarks import Figure, at_least
from benchmarks._mariadb import mariadb
from benchmarks.put_http import taxi_cells
from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.cell import new_cell
from cellfeed.store.cells.from_stored import cell_from_stored
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.limits import BATCH_CELLS_MAX, SCAN_CELLS_MAX
from tests.support.local_mariadb import MariaDB

CELLS = 200_000
STEP_CELLS = SCAN_CELLS_MAX
RUNS = 5
SCAN_RATE = at_least(200_000)
DECODED_RATE = at_least(100_000)


def figures(count: int = CELLS, runs: int = RUNS) -> Iterator[Figure]:
    """Measures; see the module."""
    with (
        mariadb() as server,
        closing(MySqlEngine(MySqlServer(server.url), "trips", 1, create=True)) as engine,
    ):
        _fill(engine, count)
        reads: dict[str, Callable[[], int]] = {
            "scan": lambda: _read(lambda location: len(engine.scan(0, location, STEP_CELLS))),
            "decoded": lambda: _read(
                lambda location: len(
                    [decode_body(cell.body) for cell in engine.scan(0, location, STEP_CELLS)]
                )
            ),
            "as cells": lambda: _read(
                lambda location: len(
                    [cell_from_stored(0, cell) for cell in engine.scan(0, location, STEP_CELLS)]
                )
            ),
            "plain": lambda: _plain(server),
        }
        rates: dict[str, list[float]] = {name: [] for name in reads}
        for _ in range(runs):
            for name, read in reads.items():
                started = time.perf_counter()
                found = read()
                rates[name].append(found / (time.perf_counter() - started))
                if found != count:
                    raise RuntimeError(f"{name}: {found} of {count} cells were read")
    plain = statistics.median(rates["plain"])
    beside = "SELECT through PyMySQL's cursor"
    yield Figure(
        "mysql-scan stored", statistics.median(rates["scan"]), "cells/s", beside, plain, SCAN_RATE
    )
    yield Figure(
        "mysql-scan bodies decoded",
        statistics.median(rates["decoded"]),
        "cells/s",
        beside,
        plain,
        DECODED_RATE,
    )
    yield Figure(
        "mysql-scan as cells of the API",
        statistics.median(rates["as cells"]),
        "cells/s",
        beside,
        plain,
    )


def _fill(engine: MySqlEngine, count: int) -> None:
    trips = [body for *_, body in taxi_cells(count)]
    for start in range(0, count, BATCH_CELLS_MAX):
        batch = enumerate(trips[start : start + BATCH_CELLS_MAX], start)
        engine.put(
            [new_cell(uuid5(NAMESPACE_URL, f"scan-{n}"), "BASE", 1, trip) for n, trip in batch]
        )


def _read(step: Callable[[int], int]) -> int:
    location = 0
    while found := step(location):
        location += found
    return location


def _plain(server: MariaDB) -> int:
    location = 0
    with (
        closing(pymysql.connect(host="127.0.0.1", port=server.port, user="root")) as connection,
        connection.cursor() as cursor,
    ):
        while rows := _plain_step(cursor, location):
            location += len(rows)
    return location


def _plain_step(cursor: pymysql.cursors.Cursor, location: int) -> tuple[tuple[Any, ...], ...]:
    cursor.execute(
        "SELECT added_id, row_key, column_name, ref_key, created_at, body FROM trips_0000.cell"
        " WHERE added_id >= %s ORDER BY added_id LIMIT %s",
        (location, STEP_CELLS),
    )
    return cursor.fetchall()
