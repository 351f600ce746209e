"""The exporter against a real broker: the partition equals the shard's log after every kill, pause
and absence (I15)."""

from __future__ import annotations

import math
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import OFFSET_END, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from cellfeed.bridge.backups.export_readers import export_readers
from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.coordination.open import open_coordinator
from cellfeed.bridge.export import export_group, pace, taking_over, unit_run
from cellfeed.bridge.export.batches import Batch, BatchReader
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.export_terms import read_terms
from cellfeed.bridge.export.forgetting import forget_export
from cellfeed.bridge.export.kafka_errors import Verdict, error_of, verdict
from cellfeed.bridge.export.limits import METADATA_S, READ_AHEAD_CELLS_MIN, TRANSACTION_CELLS_MAX
from cellfeed.bridge.export.records import OutRecord
from cellfeed.bridge.export.tails import read_tails
from cellfeed.bridge.export.unit_producer import UnitProducer
from cellfeed.bridge.export.verify import ExportVerifier, verify_export
from cellfeed.bridge.export.watching import Watching
from cellfeed.bridge.export.worker import run_exporter
from cellfeed.bridge.groups.control import Control
from cellfeed.bridge.groups.history import Operator, history, operator
from cellfeed.bridge.triggers.operate.lag import LagReader
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.trimming.needed import needs
from cellfeed.bridge.trimming.trim import Trimming
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import NotFound, PartitionMoved, ProtectData, Refused, StorageUnavailable
from cellfeed.store.failpoints import unwatch_failpoint, watch_failpoint
from tests.support import local_kafka
from tests.support.export_process import LOOKS_MEANWHILE
from tests.support.export_steps import (
    WAIT_S,
    Exporter,
    caught_up,
    check_equal,
    ends,
    export_everything,
    export_to,
    exporters,
    kafka_admin,
    pause,
    put,
    read_topic,
    wait_caught_up,
    wait_kafka,
    writing,
)
from tests.support.local_kafka import Kafka
from tests.support.local_zookeeper import ZooKeeper
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("kafka")]

SHARDS = 4
SLOW_LOOK_S = 0.02
"""What a look at the logs takes of servers that are busy: longer than a transaction does."""

LONGER_S = 3.0
"""Than the second for which a record is kept where a test says so."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(place: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(place, shards=SHARDS) as opened:
        yield opened


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
def test_after_a_kill_at_any_point_nothing_is_missing_or_there_twice(
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
    )  # what either takes on a busy machine is anybody's guess
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


@pytest.mark.parametrize(
    "overtaken", [False, True], ids=["nobody took its units", "its units were taken over meanwhile"]
)
def test_in_a_new_session_an_exporter_goes_on_with_its_units_unless_somebody_has_fenced_it(
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


def test_after_a_kill_between_a_commit_and_its_offset_the_partition_is_believed_and_the_offset_mended(  # noqa: E501
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


def test_a_process_that_was_paused_past_its_session_is_fenced_and_others_have_gone_on(
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


def test_a_producer_whose_unit_was_taken_over_cannot_commit_what_it_had_begun(
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


def test_what_a_partition_that_lost_records_takes_is_never_committed(
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


def test_a_topic_that_was_deleted_and_made_again_is_refused_until_it_is_to_be_begun_over(
    kafka: Kafka, place: Path, store: Datastore
) -> None:
    export = export_to(kafka)
    coordinator, admin = StoreCoordinator(store.state), kafka_admin(kafka)
    put(store, 200)
    export_everything(store, place, "a", export)
    topic = export.topic_of("trips")
    admin.delete_topics([topic])[topic].result(METADATA_S)
    wait_until(
        lambda: topic not in admin.list_topics(timeout=METADATA_S).topics,
        "the topic is gone",
        WAIT_S,
    )
    gone = Exporter(place, "b", SHARDS, [export])
    with exporters(gone):
        wait_until(
            lambda: gone.said("is not there any more"), "it says that the topic is gone", WAIT_S
        )
        settings = {"retention.ms": "-1", "max.message.bytes": str(export.record_bytes_max)}
        admin.create_topics([NewTopic(topic, SHARDS, 1, config=settings)])[topic].result(METADATA_S)
        wait_until(
            lambda: gone.said("was deleted and made again"),
            "it says that the topic is another one",
            WAIT_S,
        )
        reader = LagReader(store, coordinator)
        wait_until(
            lambda: all(
                "stands still" in each.because for each in reader.read(export.group).shards
            ),
            "each shard tells the reason",
            WAIT_S,
        )
        gone.drain()
    again = export_to(kafka, name=export.name, on_lost_topic="start_over")
    over = Exporter(place, "c", SHARDS, [again])
    with exporters(over):
        wait_until(lambda: over.said("begins again"), "it begins over", WAIT_S)
        put(store, 10, first=9_000)
        wait_caught_up(store, coordinator, again)
        over.drain()
    assert check_equal(store, again) == 210


def test_partitions_whose_records_were_all_deleted_as_by_retention_are_refused_until_they_are_to_be_begun_over(  # noqa: E501
    kafka: Kafka, place: Path, store: Datastore
) -> None:
    export = export_to(kafka)
    coordinator, admin = StoreCoordinator(store.state), kafka_admin(kafka)
    put(store, 200)
    export_everything(store, place, "a", export)
    everything = [TopicPartition(export.topic or "", shard, OFFSET_END) for shard in range(SHARDS)]
    for deleted in admin.delete_records(everything).values():
        deleted.result(METADATA_S)
    assert sum(len(records) for records in read_topic(export, SHARDS).values()) == 0, (
        "they are gone"
    )
    put(store, 10, first=9_000)
    refused = Exporter(place, "b", SHARDS, [export])
    with exporters(refused):
        reader = LagReader(store, coordinator)
        wait_until(
            lambda: all(
                "has lost its end" in each.because for each in reader.read(export.group).shards
            ),
            "each shard tells the reason",
            WAIT_S,
        )
        refused.drain()
    assert sum(len(records) for records in read_topic(export, SHARDS).values()) == 0, (
        "nothing was guessed"
    )
    again = export_to(kafka, name=export.name, on_lost_topic="start_over")
    export_everything(store, place, "c", again)
    assert check_equal(store, again) == 210


def test_a_topic_that_becomes_unfit_while_it_is_exported_to_stands_still_until_it_is_mended(
    kafka: Kafka, store: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_group, "TOPIC_LOOK_S", 0.2)
    monkeypatch.setattr(unit_run, "REFUSED_LOOK_S", 0.2)
    export, coordinator, admin, stop = (
        export_to(kafka),
        StoreCoordinator(store.state),
        kafka_admin(kafka),
        threading.Event(),
    )
    reader = LagReader(store, coordinator)

    def stands_still(why: str) -> bool:
        return all(
            "stands still" in each.because and why in each.because
            for each in reader.read(export.group).shards
        )

    put(store, 100)
    exporter = threading.Thread(target=run_exporter, args=([export], store, coordinator, "a", stop))
    exporter.start()
    try:
        wait_caught_up(store, coordinator, export)
        set_policy(admin, export, "compact")
        wait_until(
            lambda: stands_still("cleanup.policy is compact"),
            "each shard tells of the setting",
            WAIT_S,
        )
        put(store, 100, first=1_000)
        set_policy(admin, export, "delete")
        wait_caught_up(store, coordinator, export)
        assert check_equal(store, export) == 200
        topic = export.topic_of("trips")
        admin.create_partitions([NewPartitions(topic, SHARDS + 1)])[topic].result(METADATA_S)
        wait_until(
            lambda: stands_still(f"has {SHARDS + 1} partitions"),
            "each shard tells of the partition",
            WAIT_S,
        )
    finally:
        stop.set()
        exporter.join(WAIT_S)


def set_policy(admin: AdminClient, export: Export, policy: str) -> None:
    change = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(
        ResourceType.TOPIC, export.topic_of("trips"), incremental_configs=[change]
    )
    admin.incremental_alter_configs([resource])[resource].result(METADATA_S)


def test_an_export_goes_on_behind_a_trim_and_stands_still_when_one_has_overtaken_it(
    kafka: Kafka, place: Path, store: Datastore
) -> None:
    export, coordinator = export_to(kafka), StoreCoordinator(store.state)
    trimming, by = Trimming(store, coordinator), Operator("ann@host", "a test")
    put(store, 200)
    export_everything(store, place, "a", export)
    trimming.run(trimming.plan(range(SHARDS), older_than_s=0), by)
    assert all(head.log_start == head.watermark > 0 for head in store.heads().values())
    put(store, 100, first=1_000)
    export_everything(store, place, "b", export)
    assert [(verdict.equal, verdict.cells) for verdict in verify_export(export, store)] == [
        (True, h.watermark - h.log_start) for h in store.heads().values()
    ]

    put(store, 100, first=2_000)
    missed = {
        shard: range(each.offset, each.offset + 2)
        for (_, shard), each in coordinator.fetch_offsets(export.group).items()
    }
    plans = [
        plan for shard, ids in missed.items() for plan in trimming.plan([shard], below=ids.stop)
    ]
    with pytest.raises(ProtectData, match=f"group {export.group} has come, in topic trips, to"):
        trimming.run(plans, by)
    trimming.run(plans, by, although=[export.group])
    overtaken = Exporter(place, "c", SHARDS, [export])
    with exporters(overtaken):
        wait_until(
            lambda: overtaken.said(
                "were trimmed before they were exported; with `on_trimmed: skip`"
            ),
            "it says so",
            WAIT_S,
        )
        reader = LagReader(store, coordinator)
        wait_until(
            lambda: all(
                "stands still" in each.because for each in reader.read(export.group).shards
            ),
            "each shard tells the reason",
            WAIT_S,
        )
        overtaken.drain()
    again = export_to(kafka, name=export.name, on_trimmed="skip")
    export_everything(store, place, "d", again)
    for shard, copied in read_topic(again, SHARDS).items():
        assert [each.added_id for each in copied] == [
            n for n in range(store.heads()[shard].watermark) if n not in missed[shard]
        ]
    assert all(verdict.equal for verdict in verify_export(again, store))


def test_a_restore_is_told_how_far_the_partitions_are(
    kafka: Kafka, place: Path, store: Datastore
) -> None:
    export = export_to(kafka)
    assert export_readers(export, store.name, SHARDS) == []
    put(store, 100)
    first = Exporter(place, "a", SHARDS, [export])
    with closing(StoreCoordinator(store.state)) as coordinator, exporters(first):
        wait_caught_up(store, coordinator, export)
        first.drain()
    found = export_readers(export, store.name, SHARDS)
    assert {reader.shard: reader.location for reader in found} == ends(store)
    assert {(reader.name, reader.topic, reader.source) for reader in found} == {
        (export.name, export.topic, "export")
    }


def test_what_is_too_large_is_parked_with_the_reason_and_the_partition_goes_on(
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


def test_what_is_too_large_has_a_claim_check_where_that_is_configured(
    kafka: Kafka, place: Path, store: Datastore
) -> None:
    export = export_to(kafka, record_bytes_max=8_192, too_large="claim_check")
    put(store, 50)
    put(store, 1, first=1_000, size=10_000)
    export_everything(store, place, "a", export)
    assert check_equal(store, export) == 51
    assert not ParkedCells(store.state).all(export.group)


def test_a_paused_export_stands_still_with_the_reason_and_goes_on(
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


def test_a_forgotten_export_holds_up_no_trim_and_its_name_may_be_begun_anew(
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


def test_a_difference_is_found_while_the_export_goes_on(
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


def test_with_zookeeper_the_offsets_are_there_and_the_export_goes_on_while_it_is_away(
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


def test_while_the_cluster_is_away_an_exporter_waits_in_the_memory_that_it_had_and_goes_on_by_itself(  # noqa: E501
    tmp_path: Path, place: Path, store: Datastore
) -> None:
    if reason := local_kafka.why_not():
        pytest.skip(reason)
    directory = Path(tempfile.mkdtemp(prefix="cellfeed-kafka-"))
    kafka = Kafka(directory)
    try:
        kafka.start()
        # What is under way is given up after a second, as after the thirty that it comes with: the
        # cluster is away for longer than anything waits.
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
