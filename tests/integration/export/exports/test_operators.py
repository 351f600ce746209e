"""Large cells, pauses, forgotten exports, and a cluster or a coordination that is away."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaException, Producer

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.coordination.open import open_coordinator
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.export_terms import read_terms
from cellfeed.bridge.export.forgetting import forget_export
from cellfeed.bridge.export.kafka_errors import Verdict, error_of, verdict
from cellfeed.bridge.export.limits import TRANSACTION_CELLS_MAX
from cellfeed.bridge.export.records import OutRecord
from cellfeed.bridge.export.tails import read_tails
from cellfeed.bridge.export.unit_producer import UnitProducer
from cellfeed.bridge.export.verify import ExportVerifier
from cellfeed.bridge.export.watching import Watching
from cellfeed.bridge.groups.control import Control
from cellfeed.bridge.groups.history import Operator, history, operator
from cellfeed.bridge.triggers.operate.lag import LagReader
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.trimming.needed import needs
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import NotFound, Refused
from cellfeed.store.failpoints import unwatch_failpoint, watch_failpoint
from tests.support import local_kafka
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
    wait_kafka,
    writing,
)
from tests.support.local_kafka import Kafka
from tests.support.local_zookeeper import ZooKeeper
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("kafka")]

LONGER_S = 3.0
"""Than the second for which a record is kept where a test says so."""


def test_a_too_large_cell_is_parked_with_the_reason_and_the_partition_continues(
    kafka: Kafka, place: Path, store: Datastore
) -> None:
    export = export_to(kafka, record_bytes_max=8_192)
    put(store, 100)
    put(store, 2, first=1_000, size=10_000)
    put(store, 100, first=2_000)
    export_everything(store, place, "a", export)
    parked = ParkedCells(store.state).all(export.group)
    assert len(parked) == 2
    assert all("too large" in cell.error for cell in parked)
    assert (
        check_equal(store, export, without={(cell.partition, cell.added_id) for cell in parked})
        == 200
    )


def test_a_too_large_cell_has_a_claim_check_where_that_is_configured(
    kafka: Kafka, place: Path, store: Datastore
) -> None:
    export = export_to(kafka, record_bytes_max=8_192, too_large="claim_check")
    put(store, 50)
    put(store, 1, first=1_000, size=10_000)
    export_everything(store, place, "a", export)
    assert check_equal(store, export) == 51
    assert not ParkedCells(store.state).all(export.group)


def test_a_paused_export_stands_still_with_the_reason_and_resumes(
    kafka: Kafka, place: Path, store: Datastore
) -> None:
    export = export_to(kafka)
    coordinator = StoreCoordinator(store.state)
    put(store, 50)
    exporter = Exporter(place, "a", SHARDS, [export])
    with exporters(exporter):
        wait_caught_up(store, coordinator, export)
        Control(store.state, export.group).pause(operator("maintenance"))
        wait_until(
            lambda: not coordinator.owners(export.group, store.name),
            "it has given its units back",
            WAIT_S,
        )
        put(store, 50, first=500)
        assert "maintenance" in LagReader(store, coordinator).read(export.group).waits_because
        Control(store.state, export.group).resume(operator("done"))
        wait_caught_up(store, coordinator, export)
        exporter.drain()
    assert check_equal(store, export) == 100


def test_a_forgotten_export_delays_no_trim_and_its_name_may_be_used_again(
    kafka: Kafka, place: Path, store: Datastore
) -> None:
    export, coordinator, by = (
        export_to(kafka, record_bytes_max=8_192, units=2),
        StoreCoordinator(store.state),
        Operator("ann@host", "another format"),
    )
    put(store, 100)
    put(store, 1, first=500, size=10_000)
    exporter = Exporter(place, "a", SHARDS, [export])
    with exporters(exporter):
        wait_caught_up(store, coordinator, export)
        with pytest.raises(Refused, match="is at work"):
            forget_export(store, coordinator, export.name, export, by)
        exporter.drain()
    paused = UnitProducer(export, 1, str(export.topic), threading.Event())
    paused.fence()
    watch_failpoint("export.half_forgotten", _die)
    try:
        with pytest.raises(Died):
            forget_export(store, coordinator, export.name, export, by)
    finally:
        unwatch_failpoint("export.half_forgotten")
    assert read_terms(store, export.name) is not None
    found = forget_export(store, coordinator, export.name, export, by)
    assert (found.units, found.parked) == (2, 1)
    paused.begin({1: [OutRecord(1, 10_000, b"key", b"value", [], 0)]})
    with pytest.raises(KafkaException) as refused:
        paused.commit({})
    assert verdict(error_of(refused.value)) is Verdict.FENCED
    paused.give_up()
    assert read_terms(store, export.name) is None
    assert export.group not in (
        *LagReader(store, coordinator).exports(),
        *coordinator.groups(),
        *needs(store, coordinator).groups,
    )
    assert [deed.action for deed in history(store.state, export.group)] == ["forgotten"]
    with pytest.raises(NotFound):
        forget_export(store, coordinator, export.name, export, by)
    other = export_to(kafka, name=export.name, topic=f"{export.name}-json", format="json", units=1)
    export_everything(store, place, "b", other)
    assert check_equal(store, other) == 101


class Died(BaseException):
    """At a failpoint."""


def _die() -> None:
    raise Died


def test_verify_finds_a_difference_while_the_export_continues(
    kafka: Kafka, place: Path, store: Datastore
) -> None:
    export = export_to(kafka)
    put(store, 60)
    exporter, stop = Exporter(place, "a", SHARDS, [export]), threading.Event()
    with exporters(exporter):
        wait_caught_up(store, StoreCoordinator(store.state), export)
        with closing(ExportVerifier(export, store)) as verifier:
            assert sum(verdict.cells for verdict in verifier.look() if verdict.equal) == 60
            put(store, 30, first=100)
            wait_caught_up(store, StoreCoordinator(store.state), export)
            assert sum(verdict.cells for verdict in verifier.look() if verdict.equal) == 90, (
                "it has gone on where it was"
            )
        watching = Watching([export], store, stop, every_s=0.1)
        exporter.drain()
        intruder = Producer({"bootstrap.servers": kafka.bootstrap})
        intruder.produce(str(export.topic), b"value", b"key", 2)
        assert intruder.flush(WAIT_S) == 0
        assert stop.wait(WAIT_S), "it says that the partition is another one"
        assert "shard 2 differs" in str(watching.close())
        refused = Exporter(place, "b", SHARDS, [export])
        with exporters(refused):
            wait_until(
                lambda: refused.said("something else writes into this topic"),
                "it is not exported behind the foreign record",
                WAIT_S,
            )


def test_offsets_are_in_zookeeper_and_the_export_continues_while_zookeeper_is_away(
    kafka: Kafka, place: Path, store: Datastore, tmp_path: Path, zookeeper_server: ZooKeeper
) -> None:
    export = export_to(kafka)
    url = f"zookeeper://{zookeeper_server.hosts}/{export.name}"
    put(store, 300)
    with closing(open_coordinator(url, store.state)) as coordinator:
        killed = Exporter(place, "a", SHARDS, [export], url, failpoints="export.before_save=kill@2")
        with exporters(killed):
            killed.wait_killed()
            exporter = Exporter(place, "b", SHARDS, [export], url)
            with exporters(exporter):
                wait_caught_up(store, coordinator, export)
                zookeeper_server.pause()
                try:
                    put(store, 100, first=700)
                    wanted = ends(store)
                    wait_until(
                        lambda: _exported(export) == wanted, "it exports without ZooKeeper", WAIT_S
                    )
                finally:
                    zookeeper_server.resume()
                wait_caught_up(store, coordinator, export)
                exporter.drain()
    assert check_equal(store, export) == 400


def test_an_exporter_waits_in_bounded_memory_while_the_cluster_is_away_and_resumes(
    tmp_path: Path, place: Path, store: Datastore
) -> None:
    if reason := local_kafka.why_not():
        pytest.skip(reason)
    directory = Path(tempfile.mkdtemp(prefix="cellfeed-kafka-"))
    kafka = Kafka(directory)
    try:
        kafka.start()
        # Records under way are given up after a second, as after the default of thirty: the cluster
        # is away for longer than anything waits.
        export = export_to(kafka, client={"message.timeout.ms": 1_000})
        coordinator = StoreCoordinator(store.state)
        exporter = Exporter(place, "a", SHARDS, [export])
        with exporters(exporter):
            with writing(store):
                wait_until(
                    lambda: any(
                        each.offset for each in coordinator.fetch_offsets(export.group).values()
                    ),
                    "it exports",
                    WAIT_S,
                )
                process = psutil.Process(exporter.process.pid)
                before = process.memory_info().rss
                kafka.kill()
                killed_s = time.monotonic()
                put(store, TRANSACTION_CELLS_MAX, first=100_000_000, size=1_000)
            reader = LagReader(store, coordinator)

            def has_waited() -> bool:
                """For longer than a record is kept; a commit that was on its way is not given up,
                but asked for until it is known."""
                asks = time.monotonic() - killed_s > LONGER_S and all(
                    "has not yet acknowledged" in each.because
                    for each in reader.read(export.group).shards
                )
                return exporter.said("Message timed out") or asks

            wait_until(
                has_waited, "what was under way is given up, or its fate is asked for", WAIT_S
            )
            wait_until(
                lambda: all(
                    "the Kafka cluster" in each.because for each in reader.read(export.group).shards
                ),
                "each shard tells the reason",
                WAIT_S,
            )
            assert process.memory_info().rss - before < 32 << 20
            kafka.start()
            wait_kafka(kafka)
            wait_caught_up(store, coordinator, export)
            exporter.drain()
        assert check_equal(store, export) > TRANSACTION_CELLS_MAX
    finally:
        kafka.kill()
        shutil.rmtree(directory)


def _exported(export: Export) -> dict[int, int]:
    from cellfeed.bridge.export.kafka_clients import consumer_of

    consumer = consumer_of(export)
    try:
        return {
            shard: (each.tail.added_id or -1) + 1
            for shard, each in read_tails(consumer, export.topic_of("trips"), range(SHARDS)).items()
        }
    finally:
        consumer.close()
