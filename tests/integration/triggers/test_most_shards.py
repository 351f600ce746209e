"""Triggers, indexes and one consumer over as many shards as a datastore can have."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.export.export_terms import ExportTerms
from cellfeed.bridge.indexes.worker import IndexWorker
from cellfeed.bridge.triggers.operate.lag import LagReader
from cellfeed.bridge.triggers.worker import run_trigger_worker
from cellfeed.store.datastore import Datastore
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.limits import ADDED_ID_MAX, SHARDS_MAX, SHARDS_STORED_MAX, STATE_VALUE_BYTES_MAX
from tests.support.running_gateway import GatewayProcess
from tests.support.trigger_workers import GROUP, Recorder, all_cells
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

WAIT_S = 180.0
DEFINITION = parse_definition(
    """
table: by_number
datastore: trips
column_defs: [{column_name: BASE, fields: [{field: all, type: int}, {field: n, type: int}]}]
"""
)


@contextmanager
def at_work(run: Callable[[threading.Event], None]) -> Iterator[None]:
    """On a thread; its shards are given back at the end, which takes a while."""
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_at_the_most_shards_a_trigger_runs_and_an_index_is_built_and_kept(tmp_path: Path) -> None:
    with Datastore.open_embedded(tmp_path, shards=SHARDS_MAX) as datastore:
        datastore.put_cells([(UUID(int=n), "BASE", 1, {"n": n, "all": 1}) for n in range(40)])
        coordinator, recorder = StoreCoordinator(datastore.state), Recorder()

        def has_run_all() -> bool:
            return sorted(recorder.cells) == sorted(all_cells(datastore))

        with at_work(
            lambda stop: run_trigger_worker(
                [recorder.trigger], datastore, coordinator, "w", stop, drain_s=WAIT_S
            )
        ):
            wait_until(has_run_all, "the cells from before have run", WAIT_S)
            datastore.put_cell(UUID(int=40), "BASE", 1, {"n": 40, "all": 1})
            wait_until(has_run_all, "the new one has run", WAIT_S)
            reader = LagReader(datastore, coordinator)
            wait_until(lambda: reader.read(GROUP).cells == 0, "all offsets are saved", WAIT_S)
            assert reader.read(GROUP).without_worker == 0
        assert not coordinator.owners(GROUP, "trips"), "all are given back"
        datastore.indexes.catalog.create(DEFINITION)
        with at_work(IndexWorker(datastore, coordinator, "indexes").run):
            wait_until(
                lambda: datastore.indexes.catalog.get("by_number").current is not None,
                "the index is built",
                WAIT_S,
            )
        assert len(datastore.query_index("by_number", 1).rows) == 41


def test_at_the_most_shards_one_consumer_reads_them_all(tmp_path: Path) -> None:
    """A client of librdkafka, which names every partition in each request."""
    with Datastore.open_embedded(tmp_path / "store", shards=SHARDS_MAX) as datastore:
        datastore.put_cells([(UUID(int=n), "BASE", 1, {"n": n}) for n in range(500)])
        wanted = set(all_cells(datastore))
    with GatewayProcess(tmp_path / "store", tmp_path / "gateway.log", shards=SHARDS_MAX) as gateway:
        consumer = Consumer({"bootstrap.servers": gateway.bootstrap, "group.id": "all"})
        with closing(consumer):
            consumer.assign(
                [TopicPartition("trips", shard, OFFSET_BEGINNING) for shard in range(SHARDS_MAX)]
            )
            found = set[tuple[int, int]]()

            def has_read_all() -> bool:
                found.update(
                    (record.partition() or 0, record.offset() or 0)
                    for record in consumer.consume(500, 1.0)
                    if record.error() is None
                )
                return found == wanted

            wait_until(has_read_all, "every cell is read", WAIT_S)


def test_the_terms_of_an_export_of_the_most_shards_fit_an_entry() -> None:
    starts = [ADDED_ID_MAX - shard for shard in range(SHARDS_STORED_MAX)]
    terms = ExportTerms("trips", "trips", "a topic", 64, "envelope", starts, 1_800_000_000_000_000)
    assert len(msgspec.msgpack.encode(terms)) < STATE_VALUE_BYTES_MAX - 10_000
