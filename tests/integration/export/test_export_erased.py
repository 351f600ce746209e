"""Exports of a log with an erased row, to a real Kafka: exactly once as ever, verified although the
partition has the old bodies still, until the records before the erasure are deleted there; in a
copy of the topic that is compacted they go by themselves."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from uuid import UUID, uuid5

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.export.verify import ExportVerifier
from cellfeed.store.cells.cell import ERASED_COLUMN
from cellfeed.store.datastore import Datastore
from cellfeed.verify.report import verify
from cellfeed.verify.store_place import StorePlace
from cellfeed.verify.topic_place import TopicPlace
from tests.support.export_steps import (
    NAMESPACE,
    Exporter,
    check_equal,
    export_to,
    exporters,
    put,
    read_topic,
    wait_caught_up,
)
from tests.support.local_kafka import Kafka
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("kafka")]

SHARDS = 2
ROW = uuid5(NAMESPACE, "BASE/7")


def test_an_erasure_is_exported_as_a_tombstone_and_verify_knows_cells_erased_since(
    kafka: Kafka, tmp_path: Path
) -> None:
    with Datastore.open_embedded(tmp_path / "store", shards=SHARDS) as store:
        coordinator = StoreCoordinator(store.state)
        export = export_to(kafka)
        filtered = export_to(
            kafka, column="BASE", filter=[{"field": "kind", "op": "=", "value": 1}]
        )
        put(store, 40)
        with exporters(Exporter(tmp_path / "store", "a", SHARDS, [export, filtered])):
            for each in (export, filtered):
                wait_caught_up(store, coordinator, each)
            erased = store.erase_row(ROW)
            assert erased.cells == 1
            put(store, 10, first=100)
            for each in (export, filtered):
                wait_caught_up(store, coordinator, each)
        for each in (export, filtered):
            [entry] = [
                record
                for record in read_topic(each, SHARDS)[erased.shard]
                if record.added_id == erased.added_id
            ]
            assert (entry.key, entry.value) == (str(ROW).encode(), None)
            assert entry.headers["column_name"] == ERASED_COLUMN.encode()
            with closing(ExportVerifier(each, store)) as verifier:
                verdicts = list(verifier.look())
            assert [verdict.what for verdict in verdicts if not verdict.equal] == []
            assert [verdict.erased_since for verdict in verdicts] == [
                int(shard == erased.shard) for shard in range(SHARDS)
            ]
            assert all(verdict.log_digest == verdict.partition_digest for verdict in verdicts)
        # Digests of the store and of the topic, which has the body still.
        place = TopicPlace(kafka.bootstrap, str(export.topic), name="kafka")
        assert verify([StorePlace(store), place]).equal
        # An export that is begun now never sees the body.
        late = export_to(kafka)
        with exporters(Exporter(tmp_path / "store", "b", SHARDS, [late])):
            wait_caught_up(store, coordinator, late)
        assert check_equal(store, late) == 51
        records = read_topic(late, SHARDS)[erased.shard]
        assert [
            UUID((record.key or b"").decode()) for record in records if record.value is None
        ] == [ROW, ROW]


MARK = "a name that stands in one body alone: 2f1d7c90e4"
AT_ONCE = {"segment.ms": "100", "file.delete.delay.ms": "0"}
"""A segment that can be compacted or deleted is one that is not written to any more, and is gone
only some time after that."""


def files_with_mark(kafka: Kafka) -> list[Path]:
    """Of all that the broker has."""
    found = []
    for path in kafka.directory.rglob("*"):
        try:
            if path.is_file() and MARK.encode() in path.read_bytes():
                found.append(path)
        except FileNotFoundError:
            continue  # deleted meanwhile
    return found


def test_the_broker_has_no_erased_body_after_compacting_the_copy_and_deleting_earlier_records(
    kafka: Kafka, tmp_path: Path
) -> None:
    with (
        Datastore.open_embedded(tmp_path / "store", shards=1) as store,
        closing(StoreCoordinator(store.state)) as coordinator,
    ):
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        compacted = f"by-row-{tmp_path.name}"
        policy = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.001",
            "delete.retention.ms": "0",
            **AT_ONCE,
        }
        admin.create_topics([NewTopic(compacted, 1, 1, config=policy)])[compacted].result(60)
        export = export_to(
            kafka, format="json", topic_settings=AT_ONCE, compression="none"
        )  # a compressed value cannot be looked for in files
        with exporters(Exporter(tmp_path / "store", "a", 1, [export])):
            put(store, 20)
            store.put_cell(ROW, "NOTES", 1, {"name": MARK})
            wait_caught_up(store, coordinator, export)
            erased = store.erase_row(ROW)
            put(store, 20, first=100)
            wait_caught_up(store, coordinator, export)
            records = read_topic(export, 1)[0]
            for record in records:
                producer.produce(compacted, key=record.key, value=record.value)
            assert producer.flush(60) == 0
            assert {path.parent.name for path in files_with_mark(kafka)} == {
                f"{export.topic}-0",
                f"{compacted}-0",
            }, "it is there before"
            [entry] = [record for record in records if record.added_id == erased.added_id]
            place = TopicPartition(export.topic or "", 0, entry.offset)
            admin.delete_records([place])[place].result(60)
            more = iter(range(1_000, 1_000_000))

            def gone() -> bool:
                """More is written, so that the segments with it are not the last ones."""
                put(store, 1, first=next(more))
                producer.produce(compacted, key=str(next(more)), value="more")
                producer.flush(60)
                return not files_with_mark(kafka)

            wait_until(gone, "no file of the broker has it", 90)
            wait_caught_up(store, coordinator, export)
        left = read_topic(export, 1)[0]
        assert left[: len(records) - records.index(entry)] == records[records.index(entry) :], (
            "everything from the erasure on is as before"
        )
