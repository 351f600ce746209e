"""Topics that were deleted, emptied or changed, and logs that were trimmed."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
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
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.export import export_group, unit_run
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.limits import METADATA_S
from cellfeed.bridge.export.verify import verify_export
from cellfeed.bridge.export.worker import run_exporter
from cellfeed.bridge.groups.history import Operator
from cellfeed.bridge.triggers.operate.lag import LagReader
from cellfeed.bridge.trimming.trim import Trimming
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import ProtectData
from tests.support.export_runs import SHARDS
from tests.support.export_steps import (
    WAIT_S,
    Exporter,
    check_equal,
    ends,
    export_everything,
    export_to,
    exporters,
    kafka_admin,
    put,
    read_topic,
    wait_caught_up,
)
from tests.support.local_kafka import Kafka
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("kafka")]


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


def test_partitions_whose_records_were_all_deleted_are_refused_until_a_start_over(
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
            "the reason of each shard names the setting",
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
            "the reason of each shard names the partition",
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


def test_an_export_continues_behind_a_trim_and_stands_still_when_one_has_overtaken_it(
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


def test_a_restore_reads_how_far_the_exported_partitions_are(
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
