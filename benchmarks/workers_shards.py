"""Trigger and index workers over 4,096 shards, beside the same over 16.

Over the embedded store, in turns. A worker through HTTP, a trigger worker and an index worker are
processes of their own, as in earnest.

``idle``: processor time of a worker that has all shards and nothing to do, in per cent of one core.
``ready``: from the moment a trigger worker begins on a new datastore until it has every shard and
has saved an offset for it.

``latency``: ``PUTS_PER_S`` single puts a second through HTTP, spread evenly over random row keys.
From the acknowledgement to the function's first line. It is below zero where the function begins
while the acknowledgement is still on its way. ``from start`` goes from the start of the put.
``cell`` is the processor time that the trigger worker takes for a cell meanwhile.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple, cast
from uuid import UUID

from benchmarks import Figure, at_most
from benchmarks._arrivals import Arrivals
from benchmarks._indexes import DEFINITION
from benchmarks._processes import Process, Worker
from benchmarks.put_http import taxi_cells
from benchmarks.put_to_consumer import Passage, passages_of, percentile, put_evenly
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.indexes.worker import IndexWorker
from cellfeed.bridge.triggers.program import Trigger, trigger
from cellfeed.bridge.triggers.worker import run_trigger_worker
from cellfeed.store.datastore import Datastore
from cellfeed.store.http.client import Client
from cellfeed.store.indexes.catalog import Catalog

FEW = 16
MANY = 4_096
RUNS = 3
PUTS_PER_S = 200
SECONDS = 12.0
WARM_UP_S = 2.0
IDLE_S = 20.0
"""Long enough for several looks at the assignment and a report that repeats itself."""

SETTLE_S = 3.0
GROUP = "receiver"
READY_TIMEOUT_S = 120.0

IDLE = at_most(1.0)
TIMES_FEW = 2.0
"""Of the latency over few shards, at most."""


class _Run(NamedTuple):
    """Seconds, per cent of one core, and milliseconds of a core."""

    ready_s: float
    idle_trigger: float
    idle_index: float
    cell_ms: float
    passages: list[Passage]


def figures(
    many: int = MANY,
    runs: int = RUNS,
    seconds: float = SECONDS,
    warm_up_s: float = WARM_UP_S,
    idle_s: float = IDLE_S,
    settle_s: float = SETTLE_S,
) -> Iterator[Figure]:
    """Measures; see the module."""
    found: dict[int, list[_Run]] = {FEW: [], many: []}
    for _ in range(runs):
        for shards, measured in found.items():
            measured.append(_measured(shards, seconds, idle_s, settle_s))
    beside = f"{FEW} shards"
    for what, unit, limit in (
        ("ready_s", "s", None),
        ("idle_trigger", "% CPU", IDLE),
        ("idle_index", "% CPU", IDLE),
        ("cell_ms", "ms CPU", None),
    ):
        few, lots = (
            statistics.median(getattr(run, what) for run in found[shards]) for shards in (FEW, many)
        )
        name = what.removesuffix("_s").removesuffix("_ms").replace("_", " ")
        yield Figure(f"workers-shards {name}", lots, unit, beside, few, limit)
    for name, since in (("latency", "acknowledged"), ("from start", "started")):
        for percent in (50, 99):
            few, lots = (
                _percentile(found[shards], since, percent, warm_up_s) for shards in (FEW, many)
            )
            limit = at_most(TIMES_FEW * few) if few > 0 else None
            yield Figure(f"workers-shards {name} p{percent}", lots, "ms", beside, few, limit)


def _percentile(runs: list[_Run], since: str, percent: int, warm_up_s: float) -> float:
    """Milliseconds, over all puts of all runs."""
    took = sorted(
        (passage.received - getattr(passage, since)) * 1e3
        for run in runs
        for passage in run.passages
        if passage.started - run.passages[0].started >= warm_up_s
    )
    return percentile(took, percent)


def _measured(shards: int, seconds: float, idle_s: float, settle_s: float) -> _Run:
    cells = taxi_cells(max(1, int(PUTS_PER_S * seconds)))
    with (
        tempfile.TemporaryDirectory() as directory,
        Datastore.open_embedded(Path(directory), shards=shards) as datastore,
    ):
        Catalog(datastore.state, datastore.name).create(DEFINITION)
        place = {"directory": directory, "shards": shards}
        with Process(_index, **place) as index:
            index.told()
            _await_offsets(datastore, shards, groups=1)
            idle_index = _idle(index, idle_s, settle_s)
        with (
            Worker(directory, shards) as worker,
            Process(_receive, expected=len(cells) + 1, **place) as receiver,
            Client(worker.url, "trips") as client,
        ):
            begun_s: float = receiver.told()
            _await_offsets(datastore, shards, groups=2)
            ready_s = time.monotonic() - begun_s
            idle_trigger = _idle(receiver, idle_s, settle_s)
            client.put_cell("00000000-0000-0000-0000-000000000000", "BASE", 1, {})
            receiver.told()
            cpu_s = receiver.cpu_seconds()
            sent = put_evenly(client, cells, PUTS_PER_S)
            received: dict[str, float] = receiver.told(READY_TIMEOUT_S)
            cell_ms = (receiver.cpu_seconds() - cpu_s) * 1e3 / len(cells)
    return _Run(ready_s, idle_trigger, idle_index, cell_ms, passages_of(sent, received))


def _await_offsets(datastore: Datastore, shards: int, groups: int) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while len(datastore.state.list("offsets/")) < shards * groups:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{shards} shards are not taken within {READY_TIMEOUT_S} s")
        time.sleep(0.05)


def _idle(process: Process, idle_s: float, settle_s: float) -> float:
    """Per cent of one core."""
    time.sleep(settle_s)
    cpu_s, begun_s = process.cpu_seconds(), time.monotonic()
    time.sleep(idle_s)
    return 100 * (process.cpu_seconds() - cpu_s) / (time.monotonic() - begun_s)


def _index(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    """Tells when it begins."""
    with Datastore.open_embedded(
        Path(settings["directory"]), shards=settings["shards"]
    ) as datastore:
        connection.send("begins")
        IndexWorker(datastore, StoreCoordinator(datastore.state), "indexes").run(
            cast("threading.Event", stop)
        )


def _receive(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    """Sends when it begins, when it has the first cell, and when it received each."""
    arrivals = Arrivals(connection, settings["expected"])

    @trigger("BASE", group=GROUP)
    def receive(row_key: UUID) -> None:
        arrivals.note(str(row_key), time.monotonic())

    program: Trigger = receive.__cellfeed_trigger__  # type: ignore[attr-defined]
    with Datastore.open_embedded(
        Path(settings["directory"]), shards=settings["shards"]
    ) as datastore:
        connection.send(time.monotonic())
        run_trigger_worker(
            [program],
            datastore,
            StoreCoordinator(datastore.state),
            "receiver",
            cast("threading.Event", stop),
        )
