"""Triggers over a restored datastore, with their offsets in the store and in ZooKeeper: nothing is
missed, and cells parked since the backup run again."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.bridge.backups.kept_state import belongs, restored, trigger_groups
from cellfeed.bridge.backups.readers import group_readers, set_back
from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.backups.check import read_state
from cellfeed.store.backups.create import create
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.backups.manifest import Reader
from cellfeed.store.backups.readers_ahead import readers_ahead, refuse_readers_ahead
from cellfeed.store.backups.restore import restore
from cellfeed.store.backups.restore_plan import plan
from cellfeed.store.backups.taking import Source
from cellfeed.store.cells.cell import Cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import ProtectData
from cellfeed.testing.zookeeper_tree import ZooKeeperTree
from tests.support.trigger_workers import (
    COORDINATIONS,
    GROUP,
    Recorder,
    all_cells,
    ends,
    offsets,
    open_coordination,
    put,
    working,
)
from tests.support.waiting import wait_until

SHARDS = 4
NOW_US = 1_800_000_000_000_000


@pytest.mark.parametrize("kind", COORDINATIONS)
def test_a_trigger_continues_over_a_restored_log(kind: str, tmp_path: Path) -> None:
    folder, tree = BackupFolder(tmp_path / "backups"), ZooKeeperTree()
    recorder = Recorder()
    with (
        Datastore.open_embedded(tmp_path / "source", "trips", SHARDS) as source,
        closing(open_coordination(kind, source, tree)) as coordinator,
    ):
        put(source, range(60))
        with working(source, coordinator, recorder):
            wait_until(lambda: offsets(coordinator) == ends(source), "all of it is run and saved")
        backup = create(folder, Source(source.engine, belongs, group_readers(coordinator, SHARDS)))
        recorder.before = _refuse_one
        put(source, range(60, 100))
        with working(source, coordinator, recorder):
            wait_until(
                lambda: offsets(coordinator) == ends(source), "that is run, or parked, and saved"
            )
        assert ParkedCells(source.state).count(GROUP) == 1
        lost = ends(source)
        readers = group_readers(coordinator, SHARDS)
    ahead = readers_ahead([backup], readers)
    assert bool(ahead) == (kind == "zookeeper")
    if ahead:
        with pytest.raises(ProtectData, match=f"group {GROUP} has come"):
            refuse_readers_ahead([backup], ahead)
    new_ids = {shard: end + 10 for shard, end in lost.items()}
    made = plan([backup], restored(read_state(backup), NOW_US), readers, new_ids, NOW_US, "a test")
    with SqliteTarget(tmp_path / "new" / "trips", "trips", SHARDS) as target:
        restore(made, target)
    recorder.cells.clear()
    recorder.before = lambda _: None
    with (
        Datastore.open_embedded(tmp_path / "new", "trips", SHARDS) as store,
        closing(open_coordination(kind, store, tree)) as coordinator,
    ):
        back = set_back(coordinator, trigger_groups(read_state(backup)), backup.manifest.readers)
        assert {reader.shard for reader in back} == (
            {reader.shard for reader in ahead} if kind == "zookeeper" else set()
        )
        assert {shard: offset for shard, offset in offsets(coordinator).items() if offset} == {
            log.shard: log.watermark for log in backup.manifest.logs
        }
        put(
            store, range(60, 100)
        )  # their writer writes them again: they have new ids, above all that were ever shown
        with working(store, coordinator, recorder):
            wait_until(lambda: offsets(coordinator) == ends(store), "all of it is run and saved")
        there = {
            (shard, cell.added_id)
            for shard in range(SHARDS)
            for cell in store.engine.scan(shard, new_ids[shard] + 1, 1_000)
        }
        assert set(recorder.cells) == there
        assert len(there) == 40
        assert not there & {
            (shard, added_id) for shard, end in lost.items() for added_id in range(end)
        }
        assert set(all_cells(store)) > there


def test_only_offsets_of_workers_that_are_ahead_of_the_backup_are_set_back(
    tmp_path: Path,
) -> None:
    with Datastore.open_embedded(tmp_path, "trips", SHARDS) as store:
        coordinator = StoreCoordinator(store.state)
        now = {("trips", 0): 9, ("trips", 1): 3, ("trips", 2): 5}
        for group in ("billing", "reports"):
            coordinator.commit_offsets(
                group, {place: CommittedOffset(offset, 7) for place, offset in now.items()}
            )
        at_backup = [
            Reader(group, "trips", shard, 5, 4, "group")
            for group in ("billing", "reports")
            for shard in range(SHARDS)
        ]
        back = set_back(coordinator, ["billing"], at_backup)
        assert [(reader.name, reader.shard) for reader in back] == [("billing", 0)]

        def saved(group: str) -> list[tuple[int, int]]:
            found = coordinator.fetch_offsets(group)
            return [(found[place].offset, found[place].leader_epoch) for place in now]

        assert saved("billing") == [(5, 4), (3, 7), (5, 7)]
        assert saved("reports") == [(9, 7), (3, 7), (5, 7)]


def _refuse_one(cell: Cell) -> None:
    if cell.body["n"] == 77:
        raise ValueError("not this one")
