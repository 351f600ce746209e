"""A log that was restored with ids left out, as a Kafka consumer group finds it: it continues where
it was, passes the gap, and learns which records were lost."""

from __future__ import annotations

import json
import time
from pathlib import Path

import confluent_kafka
import pytest

from cellfeed.bridge.backups.kept_state import belongs, restored
from cellfeed.store.backups.check import read_state
from cellfeed.store.backups.create import create
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.backups.readers_ahead import IDS_LEFT_OUT
from cellfeed.store.backups.restore import restore
from cellfeed.store.backups.restore_plan import plan
from cellfeed.store.backups.taking import Source
from cellfeed.store.cells.cell import RESTORED_COLUMN
from cellfeed.store.datastore import Datastore
from tests.support.rides import rides
from tests.support.running_gateway import GatewayProcess

pytestmark = pytest.mark.integration

READ_S = 60.0
GROUP = "reports"
NOW_US = 1_800_000_000_000_000


def consumed(gateway: GatewayProcess, count: int) -> list[confluent_kafka.Message]:
    """The group's next messages of partition 1, committed."""
    settings = {
        "bootstrap.servers": gateway.bootstrap,
        "group.id": GROUP,
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    consumer = confluent_kafka.Consumer(settings)
    found: list[confluent_kafka.Message] = []
    deadline_s = time.monotonic() + READ_S
    try:
        [at] = consumer.committed([confluent_kafka.TopicPartition("trips", 1)], 30)
        consumer.assign([confluent_kafka.TopicPartition("trips", 1, max(0, at.offset))])
        while len(found) < count:
            assert time.monotonic() < deadline_s, f"{len(found)} of {count} messages came"
            found += consumer.consume(count - len(found), 0.2)
        assert not any(message.error() for message in found)
        consumer.commit(message=found[-1], asynchronous=False)
    finally:
        consumer.close()
    return found


def test_a_consumer_group_passes_the_ids_that_were_left_out(tmp_path: Path) -> None:
    folder = BackupFolder(tmp_path / "backups")
    with Datastore.open_embedded(tmp_path / "store") as source:
        source.put_new_cells(rides(0, 800))
        end = source.heads()[1].watermark
        formats = {"formats": {"*": "json"}}
        with GatewayProcess(tmp_path / "store", tmp_path / "before.log", **formats) as gateway:
            assert [message.offset() for message in consumed(gateway, 20)] == list(range(20))
        backup = create(folder, Source(source.engine, belongs))
    new_ids = {
        shard: source_end + IDS_LEFT_OUT
        for shard, source_end in ((log.shard, log.watermark) for log in backup.manifest.logs)
    }
    made = plan(
        [backup], restored(read_state(backup), NOW_US), [], new_ids, NOW_US, "the disk failed"
    )
    with SqliteTarget(tmp_path / "new" / "trips", "trips", 16) as target:
        restore(made, target)
    with Datastore.open_embedded(tmp_path / "new") as store:
        store.put_new_cells(rides(800, 200))
        ids = [cell.added_id for cell in store.engine.scan(1, 20, 10_000)]
    with GatewayProcess(tmp_path / "new", tmp_path / "after.log", **formats) as gateway:
        found = consumed(gateway, len(ids))
    assert [message.offset() for message in found] == ids
    note = found[end - 20]
    assert note.offset() == end + IDS_LEFT_OUT
    told = json.loads(note.value() or b"")
    assert told["column_name"] == RESTORED_COLUMN
    assert (told["body"]["lost_from"], told["body"]["lost_to"], told["body"]["reason"]) == (
        end,
        end + IDS_LEFT_OUT - 1,
        "the disk failed",
    )
