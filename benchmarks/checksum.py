"""The cost of a cell's checksum in a put through HTTP, and in a scan, as processor time.

The checksum alone, as puts and the embedded store compute it, and as MariaDB's frames have it: cut
out in one piece. The time of the loop around it is taken off. Beside it, per cell: the worker's
time in ``put-http``; the time of both sides in ``mysql-scan``; the reader's time in a scan of the
embedded store. Runs are interleaved; each figure is the median of their shares, in percent.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import psutil
from crc32c import crc32c

from benchmarks import Figure, at_most
from benchmarks._mariadb import mariadb
from benchmarks.put_http import batch_run, taxi_cells
from cellfeed.store.cells.cell import StoredCell, new_cell
from cellfeed.store.cells.checksum import pack_key
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.limits import BATCH_CELLS_MAX, SCAN_CELLS_MAX

CELLS = 77_196
RUNS = 5
SHARE = at_most(2.0)


def figures(count: int = CELLS, runs: int = RUNS, *, with_mariadb: bool = True) -> Iterator[Figure]:
    """Measures; see the module."""
    cells = taxi_cells(count)
    with ExitStack() as opened:
        place = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        embedded = opened.enter_context(closing(SqliteEngine(place, "trips", 1)))
        _fill(embedded, count)
        stored = _scanned(embedded)
        joined, places = _frames(stored)

        def of_cells() -> float:
            return _us(lambda: _sums(stored), count) - _us(lambda: _loop(stored), count)

        def of_frames() -> float:
            return _us(lambda: _frame_sums(joined, places), count) - _us(
                lambda: _frame_loop(places), count
            )

        whole: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
            "put-http": (of_cells, lambda: batch_run(cells)[1]),
            "a scan of the embedded store": (
                of_cells,
                lambda: _us(lambda: _scanned(embedded), count),
            ),
        }
        if with_mariadb:
            server = opened.enter_context(mariadb())
            engine = opened.enter_context(
                closing(MySqlEngine(MySqlServer(server.url), "trips", 1, create=True))
            )
            _fill(engine, count)
            assert server.process is not None
            process = psutil.Process(server.process.pid)

            def both_sides() -> float:
                before = process.cpu_times()
                own_us = _us(lambda: _scanned(engine), count)
                after = process.cpu_times()
                spent_s = after.user + after.system - before.user - before.system
                return own_us + spent_s / count * 1e6

            whole["mysql-scan"] = of_frames, both_sides
        shares: dict[str, list[float]] = {name: [] for name in whole}
        for _ in range(runs):
            for name, (checksum, all_of_it) in whole.items():
                shares[name].append(100 * checksum() / all_of_it())
    for name, found in shares.items():
        limit = None if "embedded" in name else SHARE
        yield Figure(f"checksum of {name}", statistics.median(found), "%", limit=limit)


def _fill(engine: Engine, count: int) -> None:
    trips = [body for *_, body in taxi_cells(count)]
    for start in range(0, count, BATCH_CELLS_MAX):
        batch = enumerate(trips[start : start + BATCH_CELLS_MAX], start)
        engine.put(
            [new_cell(uuid5(NAMESPACE_URL, f"sum-{n}"), "BASE", 1, trip) for n, trip in batch]
        )


def _scanned(engine: Engine) -> list[StoredCell]:
    found: list[StoredCell] = []
    while cells := engine.scan(0, len(found), SCAN_CELLS_MAX):
        found += cells
    return found


def _us(what: Callable[[], object], count: int) -> float:
    """Microseconds of this thread's processor time per cell."""
    began_s = time.thread_time()
    what()
    return (time.thread_time() - began_s) / count * 1e6


def _sums(cells: Sequence[StoredCell]) -> list[int]:
    return [
        crc32c(pack_key(added_id, ref_key, at_us, row_key) + column.encode() + body)
        for added_id, row_key, column, ref_key, at_us, body in cells
    ]


def _loop(cells: Sequence[StoredCell]) -> list[bytes]:
    return [body for added_id, row_key, column, ref_key, at_us, body in cells]


def _frames(cells: Sequence[StoredCell]) -> tuple[bytes, list[tuple[int, int, int]]]:
    """All cells in one piece, and where each begins and ends in it, with its checksum."""
    joined, places = bytearray(), []
    for added_id, row_key, column, ref_key, at_us, body in cells:
        frame = pack_key(added_id, ref_key, at_us, row_key) + column.encode() + body
        places.append((len(joined), len(joined) + len(frame), crc32c(frame)))
        joined += frame
    return bytes(joined), places


def _frame_sums(joined: bytes, places: Sequence[tuple[int, int, int]]) -> int:
    """A checksum costs a slice as well: without one, the body alone is cut out."""
    return len([None for start, end, crc in places if crc32c(joined[start:end]) != crc])


def _frame_loop(places: Sequence[tuple[int, int, int]]) -> int:
    return len([None for start, end, crc in places if crc is None])
