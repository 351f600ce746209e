"""Backups beside writers come back whole, under epochs and revisions above all earlier ones."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cellfeed.bridge.backups.kept_state import belongs
from cellfeed.store.backups.create import create
from cellfeed.store.backups.epochs import EPOCHS_LEFT_OUT
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.manifest import Reader
from cellfeed.store.backups.taking import Source
from cellfeed.store.backups.verify import verify
from cellfeed.store.cells.body_codec import forget_dictionaries
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.datastore import Datastore
from cellfeed.store.dictionaries.trainer import publish
from cellfeed.store.engines.contract.state_limits import REVISIONS_SKIPPED
from cellfeed.store.errors import (
    InvalidRequest,
    Trimmed,
)
from tests.support.backups_made import (
    SHARDS,
    backed_up,
    ends,
    logs,
    restored_into,
    trained_dictionary,
)
from tests.support.rides import ride, rides


def test_a_restored_store_has_all_contents_and_continues(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    trained = trained_dictionary()
    assert publish(source.engine.dictionaries, trained, 0)
    source.engine.trim(2, 10)
    with Datastore.open_embedded(
        tmp_path / "source", "trips", SHARDS
    ) as later:  # one that reads the turns again
        later.put_new_cells(rides(300, 100))
    source.state.commit(
        {
            "parked/billing/trips/1/5": b"\x01",
            "groups/billing/leader": b"{}",
            "cluster/role": b"{}",
            "wakeups/w": b'{"host": "127.0.0.1", "port": 9, "expires_at_us": 0}',
        }
    )
    backup = backed_up(source, folder)
    assert verify(folder.chain(backup)) == []
    expected = logs(source)
    assert any(cell.body[0] == 3 for cells in expected.values() for cell in cells)
    forget_dictionaries()
    with restored_into(tmp_path / "new", folder, backup) as store:
        assert logs(store) == expected
        assert [head[:3] for head in store.heads().values()] == [
            head[:3] for head in source.heads().values()
        ]
        assert store.engine.columns() == ["BASE"]
        assert [(kept.name, kept.turns) for kept in store.engine.dictionaries.kept()] == [
            (trained.name, (0,))
        ]
        assert [entry.key for entry in store.state.list("")] == ["parked/billing/trips/1/5"]
        with pytest.raises(Trimmed):
            store.engine.scan(2, 9, 1)
        assert (
            store.put_new_cells(rides(0, 1))[0].outcome == "exists"
            or shard_of(ride(0).row_key, SHARDS) == 2
        )
        before = ends(store)
        [new] = store.put_new_cells(rides(500, 1))
        assert new.shard is not None
        assert new.added_id == before[new.shard]


def test_epochs_and_revisions_are_above_any_that_a_lost_store_may_have_given(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    last = source.state.commit({"offsets/reports/trips/0": b"{}"})
    assert last is not None
    backup = backed_up(source, folder)
    with restored_into(
        tmp_path / "new", folder, backup, readers=(Reader("r", "trips", 0, 1, leader_epoch=7),)
    ) as store:
        [epoch] = {head.leader_epoch for head in store.heads().values()}
        assert epoch >= 7 + EPOCHS_LEFT_OUT
        for shard, end in ends(source).items():
            assert store.engine.leader_epochs(shard) == [(0, 0), (epoch, end)]
        assert (store.state.commit({"x/y": b""}) or 0) > last + REVISIONS_SKIPPED
        # Backed up once more and restored: the epochs continue rising.
        again = backed_up(store, BackupFolder(tmp_path / "again"))
        with restored_into(tmp_path / "twice", BackupFolder(tmp_path / "again"), again) as twice:
            last, end = twice.engine.leader_epochs(0)[-1]
            assert last >= epoch + EPOCHS_LEFT_OUT
            assert end == ends(store)[0]


def test_a_backup_beside_writers_and_a_trim_is_a_prefix_of_each_log(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    stop = threading.Event()
    written = [0]

    def write() -> None:
        number = 1_000
        while not stop.is_set():
            source.put_new_cells(rides(number, 20))
            number += 20
            written[0] = number - 1_000

    writer = threading.Thread(target=write)
    writer.start()
    trimmed = [False]

    def on_progress(done: int, total: int) -> None:
        if done and not trimmed[0]:
            trimmed[0] = True
            source.engine.trim(3, 20)

    try:
        backup = create(folder, Source(source.engine, belongs), on_progress=on_progress)
    finally:
        stop.set()
        writer.join()
    assert written[0]
    assert trimmed[0]
    with restored_into(tmp_path / "new", folder, backup) as store:
        now = logs(source)
        for shard, cells in logs(store).items():
            assert cells == [cell for cell in now[shard] if cell.added_id < ends(store)[shard]]
        assert store.heads()[3].log_start == 20


def test_a_backup_at_a_limited_pace_reports_progress_up_to_its_end(
    source: Datastore, folder: BackupFolder
) -> None:
    told: list[tuple[int, int]] = []
    create(
        folder,
        Source(source.engine, belongs),
        cells_per_s=1e6,
        on_progress=lambda done, total: told.append((done, total)),
    )
    assert told[0] == (0, 300)
    assert told[-1] == (300, 300)
    with pytest.raises(InvalidRequest, match="is no pace"):
        create(folder, Source(source.engine, belongs), cells_per_s=0)
