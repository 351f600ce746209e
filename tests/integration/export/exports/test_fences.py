"""Exporters that are paused, killed or overtaken: fences decide which one commits."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.export import export_group
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.kafka_errors import Verdict, error_of, verdict
from cellfeed.bridge.export.records import OutRecord
from cellfeed.bridge.export.unit_producer import UnitProducer
from cellfeed.bridge.export.worker import run_exporter
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import PartitionMoved
from cellfeed.store.failpoints import unwatch_failpoint, watch_failpoint
from tests.support.export_runs import SHARDS
from tests.support.export_steps import (
    WAIT_S,
    Exporter,
    caught_up,
    check_equal,
    export_everything,
    export_to,
    exporters,
    pause,
    put,
    wait_caught_up,
    writing,
)
from tests.support.local_kafka import Kafka
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("kafka")]


@pytest.mark.parametrize(
    "overtaken", [False, True], ids=["nobody took its units", "its units were taken over meanwhile"]
)
def test_an_exporter_with_a_new_session_continues_its_units_unless_they_were_fenced(
    kafka: Kafka, store: Datastore, overtaken: bool
) -> None:
    export = export_to(kafka, units=1)
    coordinator = StoreCoordinator(store.state)
    put(store, 500)
    fenced: list[str] = []
    groups: list[export_group.ExportGroup] = []
    watch_failpoint("export.after_fencing", lambda: fenced.append(threading.current_thread().name))
    stop = threading.Event()
    looked = {"on_look": lambda looking: groups.__setitem__(slice(None), looking)}
    exporter = threading.Thread(
        target=run_exporter,
        args=([export], store, StoreCoordinator(store.state), "a", stop),
        kwargs=looked,
    )
    exporter.start()
    try:
        wait_caught_up(store, coordinator, export)
        before = claims(store)
        coordinator.leave(groups[0].membership.session)  # as when a lease has run out
        wait_until(
            lambda: not before.items() & claims(store).items() and len(claims(store)) == SHARDS,
            "it has claimed all in a new session",
            WAIT_S,
        )
        if overtaken:
            other = UnitProducer(export, 0, str(export.topic), threading.Event())
            other.fence()
            other.give_up()
        put(store, 100, first=1_000)
        wait_caught_up(store, coordinator, export)
    finally:
        stop.set()
        exporter.join(WAIT_S)
        unwatch_failpoint("export.after_fencing")
    assert len(fenced) == (3 if overtaken else 1), fenced
    assert check_equal(store, export) == 600


def claims(store: Datastore) -> dict[str, int]:
    """Versions of the claims of the one group that there is, by key."""
    return {
        entry.key: entry.version for entry in store.state.list("groups/") if "/claims/" in entry.key
    }


def test_after_a_kill_between_commit_and_offset_the_partition_is_believed_and_the_offset_set(
    kafka: Kafka, place: Path, store: Datastore
) -> None:
    export = export_to(kafka)
    put(store, 500)
    killed = Exporter(place, "a", SHARDS, [export], failpoints="export.before_save=kill@2")
    with exporters(killed):
        killed.wait_killed()
        assert not caught_up(store, StoreCoordinator(store.state), export)
        following = export_everything(store, place, "b", export)
        assert following.said("the partition is believed")
    assert check_equal(store, export) == 500


def test_a_process_paused_past_its_session_is_fenced_and_others_have_its_units(
    kafka: Kafka, place: Path, store: Datastore
) -> None:
    export = export_to(kafka, cells_per_s=2_000)
    coordinator = StoreCoordinator(store.state)
    put(store, 4_000)
    zombie = Exporter(place, "a", SHARDS, [export], failpoints="export.after_produce=sleep:2@3")
    with exporters(zombie):
        wait_until(
            lambda: any(each.offset for each in coordinator.fetch_offsets(export.group).values()),
            "it exports",
            WAIT_S,
        )
        pause(zombie, store)
        following = Exporter(place, "b", SHARDS, [export])
        with exporters(following):
            wait_until(
                lambda: set(coordinator.owners(export.group, store.name).values()) == {"b"},
                "its units are taken over",
                WAIT_S,
            )
            wait_caught_up(store, coordinator, export)
            zombie.signal(signal.SIGCONT)
            with writing(store):
                wait_until(
                    lambda: zombie.said("another exporter"), "the zombie has noticed", WAIT_S
                )
            wait_caught_up(store, coordinator, export)
            zombie.drain()
            following.drain()
    check_equal(store, export)


def twenty_exported(kafka: Kafka, place: Path, store: Datastore) -> Export:
    """An export of one unit that has come to its end, after twenty cells."""
    export = export_to(kafka, units=1)
    put(store, 20)
    export_everything(store, place, "a", export)
    return export


def test_a_producer_whose_unit_was_taken_over_cannot_commit_its_open_transaction(
    kafka: Kafka, place: Path, store: Datastore
) -> None:
    export = twenty_exported(kafka, place, store)
    records = {0: [OutRecord(0, 10_000, b"key", b"value", [], 0)]}
    zombie, owner = (
        UnitProducer(export, 0, str(export.topic), threading.Event()) for _ in range(2)
    )
    zombie.fence()
    zombie.begin(records)
    owner.fence()
    with pytest.raises(KafkaException) as refused:
        zombie.commit({})
    assert verdict(error_of(refused.value)) is Verdict.FENCED
    zombie.give_up()
    assert check_equal(store, export) == 20


def test_a_transaction_into_a_partition_that_lost_records_is_never_committed(
    kafka: Kafka, place: Path, store: Datastore
) -> None:
    export = twenty_exported(kafka, place, store)
    # more than are there now: as after an unclean election, or in a topic that was made again under
    # a producer at work
    had = 10_000
    producer = UnitProducer(export, 0, str(export.topic), threading.Event())
    producer.fence()
    producer.begin({0: [OutRecord(0, 10_000, b"key", b"value", [], 0)]})
    with pytest.raises(
        PartitionMoved, match=f"partition 0 gave offset .* and had records up to {had} before"
    ):
        producer.commit({0: had})
    producer.give_up()
    assert check_equal(store, export) == 20


def test_two_processes_divide_the_units_and_are_restarted_one_after_the_other_while_cells_come(
    kafka: Kafka, place: Path, store: Datastore
) -> None:
    export = export_to(kafka, units=4)
    coordinator = StoreCoordinator(store.state)
    first, second = Exporter(place, "a", SHARDS, [export]), Exporter(place, "b", SHARDS, [export])
    with exporters(first, second), writing(store):
        wait_until(
            lambda: (
                sorted(coordinator.owners(export.group, store.name).values())
                == ["a", "a", "b", "b"]
            ),
            "they share the units",
            WAIT_S,
        )
        first.drain()
        again = Exporter(place, "c", SHARDS, [export])
        with exporters(again):
            wait_until(
                lambda: (
                    sorted(coordinator.owners(export.group, store.name).values())
                    == ["b", "b", "c", "c"]
                ),
                "the new one has its share",
                WAIT_S,
            )
            second.drain()
            wait_until(
                lambda: set(coordinator.owners(export.group, store.name).values()) == {"c"},
                "it has all of them",
                WAIT_S,
            )
            again.kill()
    export_everything(store, place, "d", export)
    check_equal(store, export)


def test_offsets_that_were_lost_or_set_elsewhere_change_nothing_in_the_partition(
    kafka: Kafka, place: Path, store: Datastore
) -> None:
    export = export_to(kafka)
    coordinator = StoreCoordinator(store.state)
    put(store, 400)
    export_everything(store, place, "a", export)
    found = {
        shard: each.offset for (_, shard), each in coordinator.fetch_offsets(export.group).items()
    }
    put(store, 100, first=5_000)
    coordinator.delete_offsets(export.group)
    set_by_hand = {
        (store.name, 0): CommittedOffset(3),
        (store.name, 1): CommittedOffset(found[1] + 2),
        (store.name, 2): CommittedOffset(9_999),
    }
    coordinator.commit_offsets(export.group, set_by_hand)  # behind, ahead, beyond the end, and gone
    second = export_everything(store, place, "b", export)
    assert check_equal(store, export) == 500
    for said in (
        "partition 0: 3 was saved",
        "partition 2: 9999 was saved",
        "partition 3: nothing was saved",
    ):
        assert second.said(said)
