"""Exports of a log with an erased row, to a real Kafka: exactly once as ever, verified although the partition has the old bodies still."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from uuid import UUID, uuid5

import pytest

from bridge.coordination.in_store import StoreCoordinator
from bridge.export.verify import ExportVerifier
from cellfeed.verify import StorePlace, TopicPlace, verify
from store.cells import ERASED_COLUMN
from store.datastore import Datastore
from tests.integration.export_steps import NAMESPACE, Exporter, check_equal, export_to, exporters, put, read_topic, wait_caught_up
from tests.services.local_kafka import Kafka

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("kafka")]

SHARDS = 2
ROW = uuid5(NAMESPACE, "BASE/7")


def test_the_entry_comes_as_a_tombstone_and_verify_knows_what_was_erased_since(kafka: Kafka, tmp_path: Path) -> None:
    with Datastore.open_embedded(tmp_path / "store", shards=SHARDS) as store:
        coordinator = StoreCoordinator(store.state)
        export = export_to(kafka)
        filtered = export_to(kafka, column="BASE", filter=[{"field": "kind", "op": "=", "value": 1}])
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
            [entry] = [record for record in read_topic(each, SHARDS)[erased.shard] if record.added_id == erased.added_id]
            assert (entry.key, entry.value) == (str(ROW).encode(), None)
            assert entry.headers["column_name"] == ERASED_COLUMN.encode()
            with closing(ExportVerifier(each, store)) as verifier:
                verdicts = list(verifier.look())
            assert [verdict.what for verdict in verdicts if not verdict.equal] == []
            assert [verdict.erased_since for verdict in verdicts] == [int(shard == erased.shard) for shard in range(SHARDS)]
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
        assert [UUID((record.key or b"").decode()) for record in records if record.value is None] == [ROW, ROW]
