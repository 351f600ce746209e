"""A topic equals the logs of the store, with kills at any point and slow looks."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.export import pace, taking_over
from cellfeed.bridge.export.batches import Batch, BatchReader
from cellfeed.bridge.export.limits import READ_AHEAD_CELLS_MIN
from cellfeed.bridge.export.tails import read_tails
from cellfeed.bridge.export.worker import run_exporter
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.failpoints import unwatch_failpoint, watch_failpoint
from tests.support.export_process import LOOKS_MEANWHILE
from tests.support.export_runs import SHARDS
from tests.support.export_steps import (
    WAIT_S,
    Exporter,
    check_equal,
    ends,
    export_everything,
    export_to,
    exporters,
    put,
    wait_caught_up,
    writing,
)
from tests.support.local_kafka import Kafka
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("kafka")]

SLOW_LOOK_S = 0.1
"""The time that a look at the logs takes on busy servers: longer than a transaction does."""


def test_a_topic_made_by_the_exporter_equals_the_logs_of_16_shards_that_are_written_meanwhile(
    kafka: Kafka, tmp_path: Path
) -> None:
    export = export_to(kafka)
    with Datastore.open_embedded(tmp_path / "store", shards=16) as datastore:
        put(datastore, 3_000)
        exporter = Exporter(tmp_path / "store", "a", 16, [export])
        with exporters(exporter):
            with writing(datastore) as writers:
                wait_until(
                    lambda: all(writer.cells >= 400 for writer in writers),
                    "cells are put beside it",
                    WAIT_S,
                )
            wait_caught_up(datastore, StoreCoordinator(datastore.state), export)
            exporter.drain()
        assert check_equal(datastore, export) == sum(ends(datastore).values()) >= 3_800


@pytest.mark.parametrize(
    "failpoint",
    # The two producers of a unit take turns: once each is killed with a transaction open.
    [
        "before_settled=kill@1",
        "after_settled=kill@1",
        "after_fencing=kill@1",
        "before_begin=kill@2",
        "after_produce=kill@2",
        "after_produce=kill@3",
        "before_commit=kill@2",
        "after_commit=kill@2",
        "after_save=kill@1",
    ],
)
def test_after_a_kill_at_any_point_no_cell_is_missing_or_doubled(
    kafka: Kafka, place: Path, store: Datastore, failpoint: str
) -> None:
    kill_and_go_on(kafka, place, store, failpoint)


@pytest.mark.parametrize("failpoint", ["after_produce=kill@3", "after_commit=kill@2"])
def test_the_same_with_an_older_kafka(
    older_kafka: Kafka, place: Path, store: Datastore, failpoint: str
) -> None:
    kill_and_go_on(older_kafka, place, store, failpoint)


@pytest.mark.parametrize(
    "failpoint",
    [
        "after_produce=kill@20",
        "before_commit=kill@20",
        "after_commit=kill@20",
        "after_commit=kill@21",
        "after_save=kill@6",
    ],
)
def test_the_same_where_the_next_cells_are_looked_for_meanwhile(
    kafka: Kafka, place: Path, store: Datastore, failpoint: str
) -> None:
    # Small transactions: looks are made meanwhile from that one on which comes after the first one
    # of a log that is less than a thousand cells behind.
    killed = kill_and_go_on(kafka, place, store, failpoint, cells_per_s=500, look_s=SLOW_LOOK_S)
    assert killed.said(LOOKS_MEANWHILE)


def kill_and_go_on(
    kafka: Kafka,
    place: Path,
    store: Datastore,
    failpoint: str,
    cells_per_s: int = 5_000,
    look_s: float = 0.0,
) -> Exporter:
    export = export_to(kafka, cells_per_s=cells_per_s)
    put(store, 1_500)
    killed = Exporter(place, "a", SHARDS, [export], failpoints=f"export.{failpoint}", look_s=look_s)
    with exporters(killed):
        killed.wait_killed()
        put(store, 300, first=10_000)
        export_everything(store, place, "b", export)
    assert check_equal(store, export) == 1_800
    return killed


@pytest.mark.parametrize(
    ("look_part", "meanwhile"),
    [(math.inf, False), (0.0, True)],
    ids=["looks count as quick", "looks count as slow"],
)
def test_the_next_cells_are_looked_for_while_a_transaction_is_under_way_where_looks_are_slow(
    kafka: Kafka,
    store: Datastore,
    monkeypatch: pytest.MonkeyPatch,
    look_part: float,
    meanwhile: bool,
) -> None:
    export = export_to(kafka, units=1)
    reads_ahead: list[int] = []
    read = BatchReader.read

    def reading(
        reader: BatchReader, locations: Mapping[int, int], heads: Mapping[int, Head], *more: Any
    ) -> Batch | None:
        behind = sum(heads[shard].watermark - location for shard, location in locations.items())
        if (
            threading.current_thread().name.startswith("export-ahead")
            and behind < READ_AHEAD_CELLS_MIN
        ):
            reads_ahead.append(behind)
        return read(reader, locations, heads, *more)

    monkeypatch.setattr(BatchReader, "read", reading)
    monkeypatch.setattr(
        pace, "LOOK_PART", look_part
    )  # nobody knows how long either takes on a busy machine
    stop = threading.Event()
    exporter = threading.Thread(
        target=run_exporter, args=([export], store, StoreCoordinator(store.state), "a", stop)
    )
    exporter.start()
    try:
        with writing(store) as writers:
            # Writers may be done before the exporter has begun: they continue until it looks ahead.
            wait_until(
                lambda: (
                    all(writer.cells >= 1_000 for writer in writers)
                    and bool(reads_ahead) is meanwhile
                ),
                "cells are put beside it",
                WAIT_S,
            )
        wait_caught_up(store, StoreCoordinator(store.state), export)
    finally:
        stop.set()
        exporter.join(WAIT_S)
    assert bool(reads_ahead) is meanwhile
    assert check_equal(store, export) == sum(ends(store).values()) >= 2_000


def test_after_an_error_the_ends_of_partitions_are_read_behind_a_new_fence(
    kafka: Kafka, store: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The marks of the last commit may be on their way still: a reader without fencing sees the end
    # before it, and exports its cells again.
    export = export_to(kafka, units=1)
    put(store, 500)
    steps: list[str] = []
    read = BatchReader.read

    def failing(reader: BatchReader, *arguments: Any) -> Batch | None:
        batch = read(reader, *arguments)
        if batch is None and steps.count("failed") < 2:
            steps.append("failed")
            raise StorageUnavailable("planted")
        return batch

    def reading(*arguments: Any) -> Any:
        steps.append("ends read")
        return read_tails(*arguments)

    monkeypatch.setattr(BatchReader, "read", failing)
    monkeypatch.setattr(taking_over, "read_tails", reading)
    watch_failpoint("export.after_fencing", lambda: steps.append("fenced"))
    stop = threading.Event()
    exporter = threading.Thread(
        target=run_exporter, args=([export], store, StoreCoordinator(store.state), "a", stop)
    )
    exporter.start()
    try:
        wait_until(lambda: steps.count("ends read") == 3, "taken over after each error", WAIT_S)
        put(store, 100, first=1_000)
        wait_caught_up(store, StoreCoordinator(store.state), export)
    finally:
        stop.set()
        exporter.join(WAIT_S)
        unwatch_failpoint("export.after_fencing")
    assert steps == [
        "fenced",
        "ends read",
        "failed",
        "fenced",
        "ends read",
        "failed",
        "fenced",
        "ends read",
    ]
    assert check_equal(store, export) == 600
