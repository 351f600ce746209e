"""Readers after a restore, the restored state, and the folder's rules."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from cellfeed.bridge.backups.kept_state import trigger_groups
from cellfeed.bridge.events.envelope import JsonFormat
from cellfeed.bridge.events.views import View
from cellfeed.bridge.gateway.apis.api_23_offset_for_leader_epoch import end_of_epoch
from cellfeed.bridge.gateway.log.encode import encode_range
from cellfeed.bridge.gateway.topics.topics import make_topic
from cellfeed.store.backups.check import read_state
from cellfeed.store.backups.epochs import EPOCHS_LEFT_OUT
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.manifest import Reader
from cellfeed.store.backups.prune import decide
from cellfeed.store.backups.readers_ahead import readers_ahead, refuse_readers_ahead
from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.cell import RESTORED_COLUMN
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import (
    CellfeedError,
    InvalidRequest,
    NotFound,
    ProtectData,
)
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.records import BUILDING
from tests.support.backups_made import NOW_US, SHARDS, aged, backed_up, ends, logs, restored_into
from tests.support.rides import ride, rides

INDEX = (
    "{table: by_zone, datastore: trips, column_defs: [{column_name: BASE, fields: [{field:"
    " pickup_zone, type: string}]}]}"
)


def test_readers_that_are_ahead_are_named(source: Datastore, folder: BackupFolder) -> None:
    backup = backed_up(source, folder)
    end = ends(source)[1]
    level, ahead = (
        Reader("reports", "trips", 1, end, source="group"),
        Reader("audit", "trips.BASE", 1, end + 40, source="group"),
    )
    assert readers_ahead([backup], [level, ahead]) == [ahead]
    refuse_readers_ahead([backup], [])
    with pytest.raises(
        ProtectData, match=f"group audit has come, in topic trips.BASE, to 1:{end + 40}"
    ) as refused:
        refuse_readers_ahead([backup], [ahead])
    assert "--readers-ahead raise-epoch" in str(refused.value)


def test_every_reader_passes_ids_without_a_cell(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    backup = backed_up(source, folder)
    before = ends(source)
    with restored_into(
        tmp_path / "new", folder, backup, {shard: end + 7_000 for shard, end in before.items()}
    ) as store:
        for shard, end in before.items():
            [note] = store.engine.scan(shard, end, 10)
            assert (note.added_id, note.column_name) == (end + 7_000, RESTORED_COLUMN)
            assert shard_of(note.row_key, SHARDS) == shard
            told = msgspec.json.decode(decode_body(note.body))
            assert (told["lost_from"], told["lost_to"], told["backup"]) == (
                end,
                end + 6_999,
                backup.name,
            )
            assert [cell.added_id for cell in store.engine.scan(shard, end + 3_500, 1)] == [
                end + 7_000
            ]
            assert ends(store)[shard] == end + 7_001
            assert store.engine.scan(shard, store.engine.locate(shard, NOW_US), 1) == [note]
            # Kafka's clients: one that has read beyond the backup learns where its log was cut
            # off, one that has not is not disturbed.
            epochs = store.engine.leader_epochs(shard)
            assert end_of_epoch(epochs, 0, ends(store)[shard]) == (0, end)
            # A gateway: batches without a gap between them from any location on, and the one
            # record.
            topic = make_topic("trips", View(), JsonFormat())
            block = encode_range(
                store.engine, topic, shard, end + 100, end + 7_001, EPOCHS_LEFT_OUT
            )
            assert (block[0].start, block[-1].end) == (end + 100, end + 7_001)
        assert RESTORED_COLUMN in store.engine.columns()
        [new] = store.put_new_cells(rides(700, 1))
        assert new.shard is not None
        assert new.added_id == before[new.shard] + 7_001
        assert store.get_cell_latest(UUID(bytes=ride(700).row_key), "BASE") is not None
        # And a backup of such a log returns as it is.
        again = backed_up(store, BackupFolder(tmp_path / "again"))
        with restored_into(tmp_path / "twice", BackupFolder(tmp_path / "again"), again) as twice:
            assert logs(twice) == logs(store)


def test_a_restored_index_is_a_version_to_be_built_without_its_groups_offsets(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    catalog = source.indexes.catalog
    made = catalog.create(parse_definition(INDEX))
    assert catalog.switch("by_zone", made.number)
    group = source.indexes.version(made).group.replace("/", "%2F")
    source.state.commit(
        {
            f"offsets/{group}/trips/0": b"{}",
            f"triggers/{group}/x": b"{}",
            "triggers/billing/x": b"{}",
            "triggers/export%2Fe/x": b"{}",
        }
    )
    backup = backed_up(source, folder)
    assert trigger_groups(read_state(backup)) == sorted(["billing", group.replace("%2F", "/")])
    with restored_into(tmp_path / "new", folder, backup) as store:
        [version] = store.indexes.catalog.get("by_zone").versions
        assert version.state == BUILDING
        assert version.number > made.number + 100
        assert version.definition == made.definition
        assert [entry.key for entry in store.state.list("offsets/")] == []
        assert [entry.key for entry in store.state.list("triggers/")] == [
            "triggers/billing/x",
            "triggers/export%2Fe/x",
        ]


def test_backups_older_than_the_declared_time_go_with_all_that_build_on_them(
    source: Datastore, folder: BackupFolder
) -> None:
    old = aged(backed_up(source, folder), 40)
    on_old = aged(backed_up(source, folder, old), 2)
    with pytest.raises(ProtectData, match="Take a full one first"):
        decide(folder, 30, NOW_US)
    new = aged(backed_up(source, folder), 1)
    assert names(folder, 30) == [on_old.name, old.name]
    assert names(folder, 50) == []
    aged(new, 34)
    with pytest.raises(ProtectData, match="Take a full one first"):
        decide(folder, 30, NOW_US)


def names(folder: BackupFolder, keep_days: float) -> list[str]:
    return [each.marker.name for each in decide(folder, keep_days, NOW_US).goes]


def test_one_process_at_a_time_makes_backups_in_a_folder(
    source: Datastore, folder: BackupFolder
) -> None:
    with folder.locked(), pytest.raises(InvalidRequest, match="another backup is being made"):
        backed_up(source, folder)
    with pytest.raises(NotFound):
        folder.get(None)
    for name in ("../source", "a/b"):
        with pytest.raises(CellfeedError):
            folder.get(name)
