"""Trigger workers on threads of the test, over either coordination: in the store, or in a ZooKeeper
in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid5

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.coordination.zookeeper.coordinator import ZooKeeperCoordinator
from cellfeed.bridge.coordination.zookeeper.url import ZooKeeperAddress
from cellfeed.bridge.triggers.program import RetryPolicy, Trigger, trigger
from cellfeed.bridge.triggers.worker import run_trigger_worker
from cellfeed.store.cells.cell import Cell
from cellfeed.store.datastore import Datastore
from cellfeed.testing.zookeeper_tree import ZooKeeperTree

GROUP = "recorder"
NAMESPACE = UUID("2f0b3c55-5f6e-5b0f-9a7e-7d6f1b0c9e11")
LEASE_S = 1.0
COORDINATIONS = ["store", "zookeeper"]


def open_coordination(
    kind: str, datastore: Datastore, tree: ZooKeeperTree | None = None
) -> Coordinator:
    """A coordinator of its own; those of the same ``tree`` meet."""
    if kind == "store":
        return StoreCoordinator(datastore.state)
    opened = tree or ZooKeeperTree()
    return ZooKeeperCoordinator(
        ZooKeeperAddress("a test's memory"),
        datastore.state,
        connect=lambda _, timeout_s: opened.begin(timeout_s),
    )


class Recorder:
    """A trigger that notes every cell that it runs. ``before`` is called in each run, and may wait
    or raise."""

    def __init__(self, retry: RetryPolicy | None = None, pause_rows: int | None = None) -> None:
        self.cells: list[tuple[int, int]] = []
        self.before: Callable[[Cell], object] = lambda _: None

        @trigger(
            column="BASE",
            group=GROUP,
            retry=retry or RetryPolicy(2, 0.01, 0.01),
            pause_rows=pause_rows,
        )
        def record(row_key: UUID, *, cell: Cell) -> None:
            del row_key
            self.before(cell)
            self.cells.append((cell.shard, cell.added_id))

        self.trigger: Trigger = record.__cellfeed_trigger__  # type: ignore[attr-defined]


@contextmanager
def working(
    datastore: Datastore, coordinator: Coordinator, recorder: Recorder, name: str = "w"
) -> Iterator[threading.Event]:
    """A worker at work; it is drained at the end. Gives the event that stops it."""
    stop, errors = threading.Event(), []

    def run() -> None:
        try:
            run_trigger_worker(
                [recorder.trigger], datastore, coordinator, name, stop, lease_s=LEASE_S, drain_s=10
            )
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name=f"worker-{name}")
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()
        assert not errors, errors


def put(datastore: Datastore, numbers: range, column: str = "BASE", **extra: Any) -> None:
    datastore.put_cells(
        [(uuid5(NAMESPACE, str(number)), column, 1, {"n": number, **extra}) for number in numbers]
    )


def offsets(coordinator: Coordinator) -> dict[int, int]:
    return {shard: each.offset for (_, shard), each in coordinator.fetch_offsets(GROUP).items()}


def ends(datastore: Datastore) -> dict[int, int]:
    return {shard: head.watermark for shard, head in datastore.heads().items()}


def all_cells(datastore: Datastore) -> list[tuple[int, int]]:
    return [(shard, added_id) for shard, end in ends(datastore).items() for added_id in range(end)]
