"""Backups and restores that are killed, and the places that a restore refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellfeed.bridge.backups.kept_state import restored
from cellfeed.store.backups.check import read_state
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.backups.restore import restore
from cellfeed.store.backups.restore_plan import plan
from cellfeed.store.backups.verify import verify
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import (
    InvalidRequest,
    ProtectData,
    StorageUnavailable,
)
from cellfeed.store.failpoints import FailpointReached, passes, set_failpoint, watch_failpoint
from cellfeed.store.histories import History
from tests.support.backups_made import (
    NOW_US,
    SHARDS,
    backed_up,
    ends,
    logs,
    restored_into,
    without_history,
)
from tests.support.rides import rides


@pytest.mark.parametrize(
    "failpoint",
    [
        "backup.after_marker",
        "backup.after_state",
        "backup.after_heads",
        "backup.after_log",
        "backup.before_manifest",
        "backup.after_manifest",
    ],
)
def test_a_killed_backup_is_no_backup_and_the_next_one_removes_it(
    source: Datastore, folder: BackupFolder, failpoint: str
) -> None:
    set_failpoint(failpoint, "raise")
    with pytest.raises(FailpointReached):
        backed_up(source, folder)
    assert passes(failpoint) == 1
    found, unreadable = folder.look()
    assert (len(found), len(unreadable)) == (
        (1, 0) if failpoint == "backup.after_manifest" else (0, 1)
    )
    backup = backed_up(source, folder)
    assert verify([backup]) == []
    assert folder.look()[1] == []


@pytest.mark.parametrize(
    "failpoint",
    [
        "restore.after_begin",
        "restore.after_load",
        "restore.after_complete",
        "restore.before_open",
        "sqlite.restore.before_rename",
    ],
)
def test_a_restore_that_is_killed_leaves_nothing_and_starts_over(
    source: Datastore, folder: BackupFolder, tmp_path: Path, failpoint: str
) -> None:
    backup = backed_up(source, folder)
    set_failpoint(failpoint, "raise")
    with pytest.raises(FailpointReached):
        restored_into(tmp_path / "new", folder, backup)
    assert passes(failpoint) == 1
    assert not (tmp_path / "new" / "trips").exists()
    with restored_into(tmp_path / "new", folder, backup) as store:
        assert logs(store) == logs(source)


def test_a_restored_store_is_a_history_of_its_own_that_names_its_parent_and_keeps_its_origin(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    first = source.engine.history
    assert first == History(first.history_id, "", first.history_id)
    backup = backed_up(source, folder)
    assert backup.manifest.history == first
    for name in ("one", "two"):
        restored_into(tmp_path / name, folder, backup).close()
    with (
        Datastore.open_embedded(tmp_path / "one", "trips", SHARDS) as one,
        Datastore.open_embedded(tmp_path / "two", "trips", SHARDS) as two,
    ):
        assert len({source.history_id, one.history_id, two.history_id}) == 3, (
            "one backup restored twice is two histories"
        )
        assert one.engine.history == History(one.history_id, first.history_id, first.history_id)
        again = BackupFolder(tmp_path / "again")
        with restored_into(tmp_path / "three", again, backed_up(one, again)) as three:
            assert three.engine.history == History(
                three.history_id, one.history_id, first.history_id
            )
            assert three.origin_id == source.origin_id


def test_an_increment_on_a_backup_of_another_history_is_refused_with_both_ids(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    backup = backed_up(source, folder)
    with restored_into(
        tmp_path / "new", folder, backup
    ) as store:  # its cells are those of the backup, to the last
        with pytest.raises(
            ProtectData,
            match=(
                f"{backup.name} belongs to history {source.history_id}, the store to"
                f" {store.history_id}.*Take a full backup"
            ),
        ):
            backed_up(store, folder, onto=backup)
        assert [each.name for each in folder.look()[0]] == [backup.name]
        assert (
            backed_up(store, folder, onto=backed_up(store, folder)).manifest.history.parent
            == source.history_id
        )


def test_a_manifest_of_before_there_were_histories_carries_increments_by_its_cells(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    backup = without_history(folder, backed_up(source, folder))
    assert backed_up(source, folder, onto=backup).manifest.history == source.engine.history
    with restored_into(tmp_path / "new", folder, backup) as store:
        assert store.engine.history == History(store.history_id, "", store.history_id)


def test_a_restore_beside_a_process_that_still_has_the_files_is_refused(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    backup = backed_up(source, folder)
    (tmp_path / "source" / "trips").rename(
        tmp_path / "aside"
    )  # to make room, as the operator was told
    with pytest.raises(ProtectData, match="a process has the datastore"):
        restored_into(tmp_path / "source", folder, backup)
    with pytest.raises(StorageUnavailable, match="moved away"):
        source.put_new_cells(rides(300, 1))
    source.close()
    with restored_into(tmp_path / "source", folder, backup) as store:
        assert sum(ends(store).values()) == 300


def test_a_restores_steps_elsewhere_are_done_before_the_store_can_be_used(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    backup = backed_up(source, folder)
    made = plan(
        folder.chain(backup), restored(read_state(backup), NOW_US), (), {}, NOW_US, "a test"
    )
    place, there = tmp_path / "new" / "trips", list[bool]()
    with SqliteTarget(place, "trips", SHARDS) as target:
        restore(made, target, before_open=lambda: there.append(place.exists()))
    assert there == [False]
    assert place.exists()


def test_a_store_that_is_being_restored_cannot_be_opened(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    refused = []

    def open_it() -> None:
        with pytest.raises(StorageUnavailable, match="being restored"):
            Datastore.open_embedded(tmp_path / "new", "trips", SHARDS)
        refused.append(True)

    watch_failpoint("sqlite.restore.before_rename", open_it)
    with restored_into(tmp_path / "new", folder, backed_up(source, folder)) as store:
        assert sum(ends(store).values()) == 300
    assert refused == [True]


def test_a_place_that_is_not_empty_is_refused(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    backup = backed_up(source, folder)
    source.close()
    with pytest.raises(ProtectData, match="empty storage only"):
        restored_into(tmp_path / "source", folder, backup)
    with (
        SqliteTarget(tmp_path / "new" / "trips", "trips", SHARDS),
        pytest.raises(InvalidRequest, match="another restore"),
    ):
        restored_into(tmp_path / "new", folder, backup)


@pytest.mark.parametrize("kind", ["a folder", "a file", "a link"])
def test_foreign_files_in_the_place_of_a_restores_folder_stay(
    source: Datastore, folder: BackupFolder, tmp_path: Path, kind: str
) -> None:
    backup = backed_up(source, folder)
    photos, staged = tmp_path / "photos", tmp_path / "new" / "trips.restoring"
    photos.mkdir()
    (photos / "one.jpg").write_bytes(b"mine")
    staged.parent.mkdir()
    if kind == "a folder":
        photos = photos.rename(staged)
    elif kind == "a file":
        staged.write_bytes(b"mine")
    else:
        staged.symlink_to(photos)
    with pytest.raises(ProtectData, match=r"trips\.restoring is in the way"):
        restored_into(tmp_path / "new", folder, backup)
    assert (photos / "one.jpg").read_bytes() == b"mine"
    assert staged.is_dir() or staged.read_bytes() == b"mine"
