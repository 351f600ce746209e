"""Triggers: cells per second through a function that does nothing, put to call, take-over after
kill -9, and moving 4,096 shards to new members.

Over the embedded store; each worker is a process of its own, as in earnest, with 8 threads.
Take-over and rebalancing with coordination in the store and, where it is on the machine, in a
ZooKeeper on loopback; the rest with coordination in the store.

``throughput``: a log that is there already, taxi trips over 16 shards; from the moment the worker
begins to the moment its offsets are saved at the end: joining, claiming and saving are in it. Of a
function that takes the row key; beside it one that takes the cell and decodes its body, and one
that takes batches.

``latency``: as ``put-to-consumer`` measures it, at the same rate of single puts through HTTP, from
the acknowledgement to the function's first line.

``take-over``: two workers, one is killed (``kill -9``), then cells are put into all shards; from
the kill until all of them have run and their offsets are saved. A lease, or ZooKeeper's session,
has to run out first.

``rebalance``: 7 workers join one that has all 4,096 shards; with leases or sessions of 10 s (a
worker looks at its assignment four times in one); from their joining until all 8 hold claims of 512
each. The processes are there already, so that their start is not in it.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from benchmarks import Figure, at_least, at_most
from benchmarks._arrivals import Arrivals
from benchmarks._processes import Process, Worker
from benchmarks.put_http import taxi_cells
from benchmarks.put_to_consumer import Passage, passage_figures, passages_of, put_evenly
from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.coordination.open import open_coordinator
from cellfeed.bridge.coordination.zookeeper.sessions import SESSION_PER_LEASE
from cellfeed.bridge.triggers.program import Trigger, trigger
from cellfeed.bridge.triggers.worker import run_trigger_worker
from cellfeed.store.cells.cell import Cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.http.client import Client
from tests.support import local_zookeeper
from tests.support.local_zookeeper import ZooKeeper

CELLS = 100_000
RUNS = 3
SECONDS = 12.0
WARM_UP_S = 2.0
LEASE_S = 4.0
REBALANCED_SHARDS = 4_096
REBALANCE_LEASE_S = 10.0
MEMBERS = 8
REBALANCE_TIMEOUT_S = 180.0
"""After it the run fails."""

THROUGHPUT = at_least(20_000)
P50, P99 = at_most(5.0), at_most(20.0)
NOTICED_S = 2.0
"""The lease, or the session, has to run out; so long for noticing, dividing and claiming."""

ARRIVAL_TIMEOUT_S = 60.0
"""After it a cell that has not come is lost, and the run fails."""


def figures(
    cells: int = CELLS,
    runs: int = RUNS,
    seconds: float = SECONDS,
    warm_up_s: float = WARM_UP_S,
    lease_s: float = LEASE_S,
    shards: int = REBALANCED_SHARDS,
    members: int = MEMBERS,
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
    yield Figure(
        "triggers throughput with bodies",
        medians["cell"],
        "cells/s",
        "without",
        medians["row key"],
        THROUGHPUT,
    )
    yield Figure(
        "triggers throughput in batches",
        medians["batch"],
        "cells/s",
        "one by one",
        medians["cell"],
        THROUGHPUT,
    )
    yield from passage_figures(
        "triggers latency", [_latency(seconds) for _ in range(runs)], warm_up_s, P50, P99
    )
    with _coordinations() as urls:
        for name, url in urls.items():
            take_overs = [_take_over(_own(url, f"take-over-{run}"), lease_s) for run in range(runs)]
            limit = at_most(lease_s * (1 if url == "store" else SESSION_PER_LEASE) + NOTICED_S)
            yield Figure(
                f"triggers take-over {name}",
                statistics.median(take_overs),
                "s",
                "worst",
                max(take_overs),
                limit,
            )
        for name, url in urls.items():
            took = [
                _rebalance(_own(url, f"rebalance-{run}"), shards, members, rebalance_lease_s)
                for run in range(runs)
            ]
            limit = at_most(
                rebalance_lease_s * (1 if url == "store" else SESSION_PER_LEASE) + NOTICED_S
            )
            yield Figure(
                f"triggers rebalance {name}",
                statistics.median(took),
                "s",
                "worst",
                max(took),
                limit,
            )


def _own(url: str, run: str) -> str:
    """A place of a run's own: a chroot in ZooKeeper; in the store each run has a datastore of its
    own."""
    return url if url == "store" else f"{url}/{run}"


@contextmanager
def _coordinations() -> Iterator[dict[str, str]]:
    """Where the workers meet, by the name in the figures."""
    if local_zookeeper.why_not() is not None:
        yield {"store": "store"}
        return
    with tempfile.TemporaryDirectory() as directory:
        server = ZooKeeper(Path(directory) / "zookeeper")
        server.start()
        try:
            yield {"store": "store", "ZooKeeper": server.url}
        finally:
            server.kill()


# --- throughput -----------------------------------------------------------------------------------


def _fill(directory: Path, cells: int) -> None:
    with Datastore.open_embedded(directory) as datastore:
        datastore.put_cells(taxi_cells(cells))


def _throughput(directory: str, kind: str, cells: int) -> float:
    with (
        Datastore.open_embedded(Path(directory)) as datastore,
        Process(_work, directory=directory, kind=kind) as worker,
    ):
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


def _run(
    program: list[Trigger], datastore: Datastore, name: str, stop: Event, lease_s: float = LEASE_S
) -> None:
    _run_by("store", program, datastore, name, stop, lease_s)


def _run_by(
    url: str, program: list[Trigger], datastore: Datastore, name: str, stop: Event, lease_s: float
) -> None:
    with closing(open_coordinator(url, datastore.state)) as coordinator:
        # The event of another kind of process waits and is set like a thread's.
        run_trigger_worker(
            program, datastore, coordinator, name, cast("threading.Event", stop), lease_s=lease_s
        )


# --- latency --------------------------------------------------------------------------------------


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
    return passages_of(sent, received)


def _receive(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    """Sends when it works, when it has the first cell, and when it received each."""
    arrivals = Arrivals(connection, settings["expected"])

    def receive(row_key: UUID) -> None:
        arrivals.note(str(row_key), time.monotonic())

    with Datastore.open_embedded(Path(settings["directory"])) as datastore:
        connection.send("works")
        _run([_program("row key", receive)], datastore, "receiver", stop)


# --- take-over ------------------------------------------------------------------------------------


def _take_over(url: str, lease_s: float) -> float:
    """Seconds from the kill."""
    with (
        tempfile.TemporaryDirectory() as directory,
        Datastore.open_embedded(Path(directory)) as datastore,
        closing(open_coordinator(url, datastore.state)) as eyes,
    ):
        settings = {
            "directory": directory,
            "url": url,
            "shards": datastore.shards,
            "lease_s": lease_s,
        }
        with (
            Process(_stand, name="victim", **settings) as victim,
            Process(_stand, name="heir", **settings) as heir,
        ):
            for process in (victim, heir):
                process.told()
                process.pipe.send("join")
            _await_division(eyes, {"victim": datastore.shards // 2, "heir": datastore.shards // 2})
            os.kill(victim.pid, signal.SIGKILL)
            killed_s = time.monotonic()
            ends: dict[int, int] = {}
            for key, column, ref_key, body in taxi_cells(400):
                result = datastore.put_cell(key, column, ref_key, body)
                ends[result.shard or 0] = (result.added_id or 0) + 1
            while any(
                offset.offset < ends[shard]
                for (_, shard), offset in eyes.fetch_offsets("row key").items()
                if shard in ends
            ):
                if time.monotonic() > killed_s + ARRIVAL_TIMEOUT_S:
                    raise RuntimeError(
                        "the shards of a killed worker are not taken over within"
                        f" {ARRIVAL_TIMEOUT_S} s"
                    )
                time.sleep(0.01)
            return time.monotonic() - killed_s


def _await_division(eyes: Coordinator, wanted: dict[str, int]) -> None:
    """Until each member holds so many shards."""
    deadline_s = time.monotonic() + REBALANCE_TIMEOUT_S
    while (held := dict(Counter(eyes.owners("row key", "trips").values()))) != wanted:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"the shards are not divided within {REBALANCE_TIMEOUT_S} s: {held}")
        time.sleep(0.2)  # to look at thousands of claims is work for ZooKeeper, too


def _stand(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    """Tells that it is there, and joins when it is asked to."""
    with Datastore.open_embedded(
        Path(settings["directory"]), shards=settings["shards"]
    ) as datastore:
        connection.send("there")
        connection.recv()
        _run_by(
            settings["url"],
            [_program("row key", lambda _: None)],
            datastore,
            settings["name"],
            stop,
            settings["lease_s"],
        )


# --- rebalancing ----------------------------------------------------------------------------------


def _rebalance(url: str, shards: int, members: int, lease_s: float) -> float:
    """Seconds."""
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        datastore = stack.enter_context(Datastore.open_embedded(Path(directory), shards=shards))
        eyes = stack.enter_context(closing(open_coordinator(url, datastore.state)))
        names = [f"m{number}" for number in range(members)]
        processes = [
            stack.enter_context(
                Process(
                    _stand, directory=directory, url=url, shards=shards, name=name, lease_s=lease_s
                )
            )
            for name in names
        ]
        for process in processes:
            process.told()
        processes[0].pipe.send("join")
        _await_division(eyes, {names[0]: shards})
        begun_s = time.perf_counter()
        for process in processes[1:]:
            process.pipe.send("join")
        _await_division(eyes, dict.fromkeys(names, shards // members))
        return time.perf_counter() - begun_s
