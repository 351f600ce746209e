"""A shard of ``CELLS`` taxi trips moved from one MariaDB cluster to another and back, while one
caller puts cells to it.

``shard-move copy``: cells a second that the copy of the log comes to, raw rows with all their keys,
committed durably on the target. Beside it: one ``INSERT … SELECT`` of the same rows into a table of
the same form on the source's own server, which never leaves it. ``shard-move fence``: from the
moment at which the shard takes no puts until processes can learn where it is.
``shard-move longest put``: the caller's view of it. Moves and statements are interleaved; the
figures are medians, the worst fence beside them.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from uuid import uuid4

from benchmarks import Figure, at_least, at_most
from benchmarks._mariadb import mariadb
from benchmarks.put_http import taxi_cells
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import even_map
from cellfeed.store.clusters.moves.mover import move_shard
from cellfeed.store.clusters.moves.steps import Moved
from cellfeed.store.clusters.operating.create import init_cluster
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from tests.support.local_mariadb import MariaDB

CELLS = 100_000
RUNS = 4
"""Moves: there and back, twice."""

COPY_RATE = at_least(50_000)
FENCE = at_most(1.0)
_BATCH = 5_000


def figures(cells: int = CELLS, runs: int = RUNS) -> Iterator[Figure]:
    """Measures; see the module."""
    with ExitStack() as stack:
        servers = {"c1": stack.enter_context(mariadb()), "c2": stack.enter_context(mariadb())}
        clusters = {
            name: ClusterServers(name, "trips", 1, {"a": MySqlServer(server.url)}, semi_sync=False)
            for name, server in servers.items()
        }
        divided = even_map("trips", 1, ["c1"])  # one map, as one history
        for cluster in clusters.values():
            stack.callback(cluster.close)
            init_cluster(cluster, divided)
        openers = {
            name: {
                "a": lambda timeout_s, url=server.url: MySqlEngine(
                    MySqlServer(url, timeout_s), "trips", 1
                )
            }
            for name, server in servers.items()
        }
        datastore = stack.enter_context(Datastore(ClusteredEngine("trips", 1, openers)))
        puts = taxi_cells(cells)
        for start in range(0, cells, _BATCH):
            datastore.put_cells(puts[start : start + _BATCH])
        done: list[Moved] = []
        beside: list[float] = []
        longest: list[float] = []
        names = ["c1", "c2"]
        for run in range(runs):
            source, target = names[run % 2], names[(run + 1) % 2]
            beside.append(_insert_select(servers[source]))
            with _Caller(datastore) as caller:
                done.append(move_shard(clusters, 0, target, datastore.engine.dictionaries.complete))
            longest.append(caller.longest_s)
        rate = statistics.median(each.cells / each.copy_s for each in done)
        yield Figure(
            "shard-move copy",
            rate,
            "cells/s",
            "INSERT … SELECT on one server",
            statistics.median(beside),
            COPY_RATE,
        )
        fences = [each.fence_s or 0.0 for each in done]
        yield Figure("shard-move fence p50", statistics.median(fences), "s", limit=FENCE)
        yield Figure("shard-move fence worst", max(fences), "s", limit=FENCE)
        yield Figure("shard-move longest put", max(longest), "s")


class _Caller:
    """Puts one cell after the other."""

    def __init__(self, datastore: Datastore) -> None:
        self.longest_s = 0.0
        self._datastore = datastore
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Caller:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        time.sleep(0.2)  # a put that waited has its answer
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.005):
            began_s = time.monotonic()
            self._datastore.put_cell(uuid4(), "BASE", 1, {})
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)


def _insert_select(server: MariaDB) -> float:
    server.sql(
        "DROP DATABASE IF EXISTS beside",
        "CREATE DATABASE beside",
        "CREATE TABLE beside.cell LIKE trips_0000.cell",
    )
    began_s = time.monotonic()
    server.sql("INSERT INTO beside.cell SELECT * FROM trips_0000.cell")
    took_s = time.monotonic() - began_s
    [(rows,)] = server.sql("SELECT COUNT(*) FROM beside.cell")
    server.sql("DROP DATABASE beside")
    return int(str(rows)) / took_s
