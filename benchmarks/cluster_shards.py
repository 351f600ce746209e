"""Trigger and index workers over a cluster of 4,096 shards, beside the same over 16.

One MariaDB server is the cluster, its files in a temporary folder. Each worker is a process of its
own, with the coordination in the store. ``idle``: its processor time in per cent of one core while
it has all shards and nothing comes; ``server``: the server's meanwhile. ``cell``: milliseconds of a
core that the trigger worker takes for a cell, at ``PUTS_PER_S`` single puts a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any, NamedTuple, cast
from uuid import UUID

import psutil

from benchmarks import Figure, at_most
from benchmarks._indexes import DEFINITION
from benchmarks._mariadb import mariadb
from benchmarks._processes import Process
from benchmarks.put_http import taxi_cells
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.indexes.worker import IndexWorker
from cellfeed.bridge.triggers.program import Trigger, trigger
from cellfeed.bridge.triggers.worker import run_trigger_worker
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import even_map
from cellfeed.store.clusters.operating.create import init_cluster
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.indexes.catalog import Catalog
from tests.support.local_mariadb import MariaDB

FEW = 16
MANY = 4_096
PUTS_PER_S = 100
CELLS = 1_000
IDLE_S = 20.0
SETTLE_S = 3.0
READY_TIMEOUT_S = 300.0
IDLE = at_most(1.0)


class _Cost(NamedTuple):
    """Per cent of one core, and milliseconds of a core."""

    idle_trigger: float
    idle_index: float
    idle_server: float
    cell_ms: float


def figures(
    many: int = MANY, cells: int = CELLS, idle_s: float = IDLE_S, settle_s: float = SETTLE_S
) -> Iterator[Figure]:
    """Measures; see the module."""
    few, lots = (_measured(shards, cells, idle_s, settle_s) for shards in (FEW, many))
    beside = f"{FEW} shards"
    for name, unit, limit in (
        ("idle_trigger", "% CPU", IDLE),
        ("idle_index", "% CPU", IDLE),
        ("idle_server", "% CPU", None),
        ("cell_ms", "ms CPU", None),
    ):
        case = f"cluster-shards {name.removesuffix('_ms').replace('_', ' ')}"
        yield Figure(case, getattr(lots, name), unit, beside, getattr(few, name), limit)


def _measured(shards: int, cells: int, idle_s: float, settle_s: float) -> _Cost:
    with mariadb(tables_open=max(400, 3 * shards)) as server:
        admin = ClusterServers(
            "c1", "trips", shards, {"a": MySqlServer(server.url, 120)}, semi_sync=False
        )
        with closing(admin):
            init_cluster(admin, even_map("trips", shards, ["c1"]))
        place = {"url": server.url, "shards": shards}
        with _opened(place) as datastore:
            Catalog(datastore.state, datastore.name).create(DEFINITION)
            with Process(_index, **place) as index:
                index.told()
                _await_offsets(datastore, shards)
                [index_idle] = _idle([index.cpu_seconds], idle_s, settle_s)
            with Process(_receive, **place) as receiver:
                receiver.told()
                _await_offsets(datastore, 2 * shards)
                trigger_idle, server_idle = _idle(
                    [receiver.cpu_seconds, lambda: _cpu_s(server)], idle_s, settle_s
                )
                before_s = receiver.cpu_seconds()
                begun_s = time.monotonic()
                for number, cell in enumerate(taxi_cells(cells)):
                    time.sleep(max(0.0, begun_s + number / PUTS_PER_S - time.monotonic()))
                    datastore.put_cells([cell])[0].or_raise()
                receiver.pipe.send(cells)
                receiver.told(READY_TIMEOUT_S)
                cell_ms = (receiver.cpu_seconds() - before_s) / cells * 1e3
    return _Cost(trigger_idle, index_idle, server_idle, cell_ms)


def _opened(place: dict[str, Any]) -> Datastore:
    url, shards = place["url"], place["shards"]

    def open_node(timeout_s: float) -> MySqlEngine:
        return MySqlEngine(MySqlServer(url, timeout_s), "trips", shards)

    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            return Datastore(ClusteredEngine("trips", shards, {"c1": {"a": open_node}}))
        except StorageUnavailable:  # a busy server opens 4,096 shards for the first time
            if time.monotonic() > deadline_s:
                raise


def _await_offsets(datastore: Datastore, count: int) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while len(datastore.state.list("offsets/")) < count:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{count} offsets are not saved within {READY_TIMEOUT_S:.0f} s")
        time.sleep(0.2)


def _cpu_s(server: MariaDB) -> float:
    assert server.process is not None
    times = psutil.Process(server.process.pid).cpu_times()
    return float(times.user + times.system)


def _idle(cpu_s: list[Any], idle_s: float, settle_s: float) -> list[float]:
    """Per cent of one core."""
    time.sleep(settle_s)
    before, begun_s = [each() for each in cpu_s], time.monotonic()
    time.sleep(idle_s)
    took_s = time.monotonic() - begun_s
    return [100 * (each() - then) / took_s for each, then in zip(cpu_s, before, strict=True)]


def _index(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    """Tells when it begins."""
    with _opened(settings) as datastore:
        connection.send("begins")
        IndexWorker(datastore, StoreCoordinator(datastore.state), "indexes").run(
            cast("threading.Event", stop)
        )


def _receive(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    """Tells when it begins; then, when it has received as many cells as it is sent a number."""
    received: list[UUID] = []

    @trigger("BASE", group="receiver")
    def receive(row_key: UUID) -> None:
        received.append(row_key)

    def tell() -> None:
        wanted = connection.recv()
        while len(received) < wanted and not stop.is_set():
            time.sleep(0.01)
        connection.send(len(received))

    program: Trigger = receive.__cellfeed_trigger__  # type: ignore[attr-defined]
    with _opened(settings) as datastore:
        connection.send("begins")
        threading.Thread(target=tell, daemon=True).start()
        run_trigger_worker(
            [program],
            datastore,
            StoreCoordinator(datastore.state),
            "receiver",
            cast("threading.Event", stop),
        )
