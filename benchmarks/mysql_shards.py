"""A datastore of thousands of shards on one MariaDB server: to make it, to start the server, to
open it, memory, puts and scans over all shards.

Two databases more than shards; the server's table caches are set to hold them all. ``first``
figures are those right after the server has started, when no table is open yet; the others follow
on the same tables. Times are wall clock, one run; memory is the server's resident set.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from uuid import UUID, uuid5

import psutil

from benchmarks import Figure, at_most
from benchmarks._mariadb import mariadb
from cellfeed.store.cells.cell import NewCell, new_cell
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from tests.support.local_mariadb import MariaDB

SHARDS = 4_096
SINGLE_PUTS = 300
SCANS = 300
_NAMESPACE = UUID(int=4096)


def figures(
    shards: int = SHARDS, singles: int = SINGLE_PUTS, scans: int = SCANS
) -> Iterator[Figure]:
    """Measures; see the module."""
    case = "mysql-shards"
    rows = _one_cell_per_shard(shards)
    with mariadb(tables_open=max(400, 3 * shards)) as server:
        yield Figure(
            f"{case} create",
            _seconds(lambda: _open(server, shards, create=True).close()),
            "s",
            limit=at_most(60),
        )
        server.stop()
        yield Figure(f"{case} server start", _seconds(server.start), "s", limit=at_most(5))
        yield Figure(
            f"{case} first open with checks",
            _seconds(lambda: _open(server, shards).close()),
            "s",
            limit=at_most(5),
        )
        yield Figure(
            f"{case} open with checks",
            _seconds(lambda: _open(server, shards).close()),
            "s",
            limit=at_most(2),
        )
        with closing(_open(server, shards)) as engine:
            yield Figure(
                f"{case} first put of a cell to each",
                _seconds(lambda: engine.put(rows[0])),
                "s",
                limit=at_most(15),
            )
            yield Figure(
                f"{case} put of a cell to each",
                _seconds(lambda: engine.put(rows[1])),
                "s",
                limit=at_most(5),
            )
            yield Figure(
                f"{case} single put p50",
                _median_ms([partial(engine.put, [cell]) for cell in rows[2][:singles]]),
                "ms",
            )
            yield Figure(
                f"{case} scan of a shard p50",
                _median_ms(
                    [partial(engine.scan, shard, 0, 100) for shard in range(min(shards, scans))]
                ),
                "ms",
            )
            yield Figure(
                f"{case} heads of all", _median_ms([engine.heads] * 5), "ms", limit=at_most(100)
            )
            yield Figure(
                f"{case} has anything changed",
                _median_ms([engine.change_token] * 20),
                "ms",
                limit=at_most(20),
            )
        assert server.process is not None
        yield Figure(
            f"{case} server memory",
            psutil.Process(server.process.pid).memory_info().rss / 1e6,
            "MB",
            limit=at_most(1_500),
        )
        server.kill()
        yield Figure(
            f"{case} server start after kill -9", _seconds(server.start), "s", limit=at_most(15)
        )


def _open(server: MariaDB, shards: int, *, create: bool = False) -> MySqlEngine:
    return MySqlEngine(MySqlServer(server.url, timeout_s=120), "trips", shards, create=create)


def _one_cell_per_shard(shards: int) -> list[list[NewCell]]:
    """Three calls, each with one cell for every shard."""
    found: dict[int, list[NewCell]] = {shard: [] for shard in range(shards)}
    missing, number = shards, 0
    while missing:
        key = uuid5(_NAMESPACE, str(number))
        number += 1
        cells = found[shard_of(key.bytes, shards)]
        if len(cells) < 3:
            cells.append(new_cell(key, "BASE", 1, {"trip": number}))
            missing -= len(cells) == 3
    return [[cells[call] for cells in found.values()] for call in range(3)]


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _median_ms(calls: Sequence[Callable[[], object]]) -> float:
    return statistics.median(_seconds(call) for call in calls) * 1e3
