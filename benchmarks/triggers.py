"""Triggers: cells per second through a function that does nothing, put to call, take-over after kill -9, and moving 4,096 shards to new members.

Over the embedded store, coordination in the store; each worker is a process of its own, as in earnest, with 8 threads.

``throughput``: a log that is there already, taxi trips over 16 shards, from the moment the worker begins to the moment its offsets are saved at the end:
joining, claiming and saving are in it. Of a function that takes the row key; beside it one that takes the cell and decodes its body, and one that takes
batches.

``latency``: as ``put-to-consumer`` measures it, at the same rate of single puts through HTTP, from the acknowledgement to the function's first line.

``take-over``: two workers, one is killed (``kill -9``), then cells are put into all shards; from the kill until all of them have run.

``rebalance``: 7 members join one that has all 4,096 shards, with leases of 10 s (a worker looks at its assignment four times in one); from the first join until
all 8 have begun on 512 each: dividing, giving back, claiming, reading offsets and what earlier owners have left behind. All 8 are in one process, as workers
on as many machines would have more cores between them.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from benchmarks import Figure, at_least, at_most
from benchmarks._processes import Process, Worker
from benchmarks.put_http import taxi_cells
from benchmarks.put_to_consumer import Passage, passage_figures, put_evenly
from bridge.coordination.in_store import StoreCoordinator
from bridge.triggers.program import Trigger, trigger
from bridge.triggers.standing import LeaseKeeper
from bridge.triggers.trigger_group import TriggerGroup
from bridge.triggers.work_threads import WorkThreads
from bridge.triggers.worker import run_trigger_worker
from store.cells import Cell
from store.client import Client
from store.datastore import Datastore

CELLS = 100_000
RUNS = 3
SECONDS = 12.0
WARM_UP_S = 2.0
LEASE_S = 4.0
REBALANCED_SHARDS = 4_096
REBALANCE_LEASE_S = 10.0
MEMBERS = 8
THROUGHPUT = at_least(20_000)
P50, P99 = at_most(5.0), at_most(20.0)
TAKE_OVER = at_most(LEASE_S + 2.0)
"""The lease has to run out; two seconds are for noticing, dividing and claiming."""

REBALANCE = at_most(12.0)
"""A lease of 10 s and the 2 s that a take-over may take beyond it."""

ARRIVAL_TIMEOUT_S = 60.0
"""After it a cell that has not come is lost, and the run fails."""


def figures(
    cells: int = CELLS,
    runs: int = RUNS,
    seconds: float = SECONDS,
    warm_up_s: float = WARM_UP_S,
    lease_s: float = LEASE_S,
    shards: int = REBALANCED_SHARDS,
    rebalance_lease_s: float = REBALANCE_LEASE_S,
) -> Iterator[Figure]:
    """Measures; see the module."""
    rates: dict[str, list[float]] = {kind: [] for kind in ("row key", "cell", "batch")}
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as directory:
            _fill(Path(directory), cells)
            for kind, measured in rates.items():
                measured.append(_throughput(directory, kind, cells))
    medians = {kind: statistics.median(measured) for kind, measured in rates.items()}
    yield Figure("triggers throughput", medians["row key"], "cells/s", limit=THROUGHPUT)
    yield Figure("triggers throughput with bodies", medians["cell"], "cells/s", "without", medians["row key"], THROUGHPUT)
    yield Figure("triggers throughput in batches", medians["batch"], "cells/s", "one by one", medians["cell"], THROUGHPUT)
    yield from passage_figures("triggers latency", [_latency(seconds) for _ in range(runs)], warm_up_s, P50, P99)
    take_overs = [_take_over(lease_s) for _ in range(runs)]
    yield Figure("triggers take-over", statistics.median(take_overs), "s", "worst", max(take_overs), TAKE_OVER)
    yield Figure("triggers rebalance", statistics.median([_rebalance(shards, rebalance_lease_s) for _ in range(runs)]), "s", limit=REBALANCE)


# --- throughput --------------------------------------------------------------------------------------------------------------


def _fill(directory: Path, cells: int) -> None:
    with Datastore.open_embedded(directory) as datastore:
        datastore.put_cells(taxi_cells(cells))


def _throughput(directory: str, kind: str, cells: int) -> float:
    with Datastore.open_embedded(Path(directory)) as datastore, Process(_work, directory=directory, kind=kind) as worker:
        coordinator = StoreCoordinator(datastore.state)
        begun_s: float = worker.told()
        deadline_s = time.monotonic() + ARRIVAL_TIMEOUT_S
        while sum(offset.offset for offset in coordinator.fetch_offsets(kind).values()) < cells:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"{cells} cells are not run within {ARRIVAL_TIMEOUT_S} s")
            time.sleep(0.005)
        return cells / (time.monotonic() - begun_s)


def _program(kind: str, received: Callable[[UUID], None]) -> Trigger:
    def takes_row_key(row_key: UUID) -> None:
        received(row_key)

    def takes_cell(row_key: UUID, *, cell: Cell) -> None:
        assert cell.body is not None
        received(row_key)

    def takes_batch(cells: list[Cell]) -> None:
        assert all(cell.body is not None for cell in cells)

    made = {
        "row key": lambda: trigger("BASE", group=kind)(takes_row_key),
        "cell": lambda: trigger("BASE", group=kind)(takes_cell),
        "batch": lambda: trigger("BASE", group=kind, batch=500)(takes_batch),
    }[kind]()
    return cast("Trigger", made.__cellfeed_trigger__)  # type: ignore[attr-defined]


def _work(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    """Tells when it begins."""
    with Datastore.open_embedded(Path(settings["directory"])) as datastore:
        connection.send(time.monotonic())
        _run([_program(settings["kind"], lambda _: None)], datastore, "worker", stop)


def _run(program: list[Trigger], datastore: Datastore, name: str, stop: Event, lease_s: float = LEASE_S) -> None:
    # The event of another kind of process waits and is set like a thread's.
    run_trigger_worker(program, datastore, StoreCoordinator(datastore.state), name, cast("threading.Event", stop), lease_s=lease_s)


# --- latency -----------------------------------------------------------------------------------------------------------------


def _latency(seconds: float) -> list[Passage]:
    """The passages of one run in the order of their starts."""
    cells = taxi_cells(int(500 * seconds))
    with (
        tempfile.TemporaryDirectory() as directory,
        Worker(directory) as worker,
        Process(_receive, directory=directory, expected=len(cells) + 1) as receiver,
        Client(worker.url, "trips") as client,
    ):
        receiver.told()
        client.put_cell("00000000-0000-0000-0000-000000000000", "BASE", 1, {})
        receiver.told()
        sent = put_evenly(client, cells)
        received: dict[str, float] = receiver.told(ARRIVAL_TIMEOUT_S)
    return sorted(Passage(started, acknowledged, received[key]) for key, (started, acknowledged) in sent.items())


def _receive(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    """Tells when it works, when it has the first cell, and when it received each."""
    received: dict[str, float] = {}

    def receive(row_key: UUID) -> None:
        received.setdefault(str(row_key), time.monotonic())
        if len(received) == 1:
            connection.send("warmed up")
        if len(received) == settings["expected"]:
            connection.send(received)

    with Datastore.open_embedded(Path(settings["directory"])) as datastore:
        connection.send("works")
        _run([_program("row key", receive)], datastore, "receiver", stop)


# --- take-over ---------------------------------------------------------------------------------------------------------------


def _take_over(lease_s: float) -> float:
    """Seconds from the kill."""
    with tempfile.TemporaryDirectory() as directory, Datastore.open_embedded(Path(directory)) as datastore:
        coordinator = StoreCoordinator(datastore.state)
        with (
            Process(_stand, directory=directory, name="victim", lease_s=lease_s) as victim,
            Process(_stand, directory=directory, name="heir", lease_s=lease_s) as heir,
        ):
            pid: int = victim.told()
            heir.told()
            while sorted(_held(coordinator).values()) != [datastore.shards // 2] * 2:
                time.sleep(0.05)
            os.kill(pid, signal.SIGKILL)
            killed_s = time.monotonic()
            ends: dict[int, int] = {}
            for key, column, ref_key, body in taxi_cells(400):
                result = datastore.put_cell(key, column, ref_key, body)
                ends[result.shard or 0] = (result.added_id or 0) + 1
            while any(offset.offset < ends[shard] for (_, shard), offset in coordinator.fetch_offsets("row key").items()):
                if time.monotonic() > killed_s + ARRIVAL_TIMEOUT_S:
                    raise RuntimeError(f"the shards of a killed worker are not taken over within {ARRIVAL_TIMEOUT_S} s")
                time.sleep(0.01)
            return time.monotonic() - killed_s


def _held(coordinator: StoreCoordinator) -> dict[str, int]:
    owners = list(coordinator.owners("row key", "trips").values())
    return {name: owners.count(name) for name in set(owners)}


def _stand(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    """Tells its pid."""
    with Datastore.open_embedded(Path(settings["directory"])) as datastore:
        connection.send(os.getpid())
        _run([_program("row key", lambda _: None)], datastore, settings["name"], stop, settings["lease_s"])


# --- rebalancing -------------------------------------------------------------------------------------------------------------


def _rebalance(shards: int, lease_s: float) -> float:
    """Seconds."""
    with tempfile.TemporaryDirectory() as directory, Datastore.open_embedded(Path(directory), shards=shards) as datastore:
        coordinator = StoreCoordinator(datastore.state)
        program = _program("row key", lambda _: None)
        heads = {shard: head.watermark for shard, head in datastore.heads().items()}
        groups = [TriggerGroup(program, datastore, coordinator, "m0", lease_s)]
        pool = WorkThreads(1)
        keepers = [LeaseKeeper([groups[0].standing], lease_s)]
        try:
            while len(groups[0].progress()) < shards:
                _step(groups, pool, heads)
            begun_s = time.perf_counter()
            groups += [TriggerGroup(program, datastore, coordinator, f"m{number}", lease_s) for number in range(1, MEMBERS)]
            keepers.append(LeaseKeeper([group.standing for group in groups[1:]], lease_s))
            while any(len(group.progress()) != shards // MEMBERS for group in groups):
                _step(groups, pool, heads)
            return time.perf_counter() - begun_s
        finally:
            for keeper in keepers:
                keeper.close()
            pool.close()


def _step(groups: list[TriggerGroup], pool: WorkThreads, heads: dict[int, int]) -> None:
    for group in groups:
        group.keep_place()
        group.start_work(pool, heads)
    time.sleep(0.01)
