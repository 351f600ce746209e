"""Backups in the order of a sequence: which is the newest, which ones prune removes, which ones an
increment may stand on, and the effect of later ones on a restore."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from cellfeed.bridge.backups.kept_state import belongs, restored
from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.check import read_state
from cellfeed.store.backups.create import create
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.backups.manifest import Manifest, encode_manifest
from cellfeed.store.backups.marker import MANIFEST, MARKER, read_marker, write_marker
from cellfeed.store.backups.prune import DAY_US, Decision, decide, remove
from cellfeed.store.backups.readers_ahead import backup_readers, readers_ahead, refuse_readers_ahead
from cellfeed.store.backups.restore import restore
from cellfeed.store.backups.restore_plan import plan
from cellfeed.store.backups.taking import Source
from cellfeed.store.backups.verify import check_files, verify
from cellfeed.store.cells.cell import NewCell
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.sqlite.state import SqliteState
from cellfeed.store.errors import DataDamaged, InvalidRequest, ProtectData, StorageUnavailable
from cellfeed.store.failpoints import FailpointReached, set_failpoint
from cellfeed.store.histories import NO_HISTORY
from tests.support.rides import rides

SHARDS = 2
NOW_US = 1_900_000_000_000_000


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "source", "trips", SHARDS) as store:
        store.put_new_cells(rides(0, 100))
        yield store


@pytest.fixture
def folder(tmp_path: Path) -> BackupFolder:
    return BackupFolder(tmp_path / "backups")


def backed_up(store: Datastore, folder: BackupFolder, onto: Backup | None = None) -> Backup:
    return create(folder, Source(store.engine, belongs), onto=onto)


def without_history(folder: BackupFolder, backup: Backup) -> Backup:
    """As a program wrote it that knew no histories: then the cells alone tell."""
    (backup.path / MANIFEST).write_bytes(
        encode_manifest(msgspec.structs.replace(backup.manifest, history=NO_HISTORY))
    )
    return folder.get(backup.name)


def restored_into(directory: Path, folder: BackupFolder, backup: Backup) -> Datastore:
    made = plan(
        folder.chain(backup),
        restored(read_state(backup), NOW_US),
        [],
        {},
        NOW_US,
        "a test",
        begun_epoch=1_000,
    )  # an earlier version drew none
    with SqliteTarget(directory / "trips", "trips", SHARDS) as target:
        restore(made, target)
    return Datastore.open_embedded(directory, "trips", SHARDS)


def rewritten(backup: Backup, manifest: Manifest) -> Backup:
    (backup.path / MANIFEST).write_bytes(encode_manifest(manifest))
    return BackupFolder(backup.path.parent).get(backup.name)


def aged(backup: Backup, days: int) -> Backup:
    """As if it had been taken so many days before ``NOW_US``, by the clock."""
    return rewritten(
        backup, msgspec.structs.replace(backup.manifest, created_at_us=NOW_US - days * DAY_US)
    )


def of_format_1(backup: Backup) -> Backup:
    """As an earlier version has left it."""
    (backup.path / MARKER).unlink()
    logs = [msgspec.structs.replace(log, witness="") for log in backup.manifest.logs]
    return rewritten(
        backup,
        msgspec.structs.replace(
            backup.manifest, format_version=1, identity="", sequence=0, register=None, logs=logs
        ),
    )


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def going(decision: Decision) -> dict[str, str]:
    return {each.marker.name: each.why for each in decision.goes}


# --- the order ------------------------------------------------------------------------------------


def test_a_clock_that_went_back_changes_no_order(
    source: Datastore, folder: BackupFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = backed_up(source, folder)
    source.put_new_cells(rides(100, 50))
    monkeypatch.setattr(
        SqliteState, "now_us", lambda _: first.manifest.created_at_us - 3_600_000_000
    )
    second = backed_up(source, folder, first)
    assert second.name < first.name
    assert folder.get(None).name == second.name
    assert [each.name for each in folder.look()[0]] == [first.name, second.name]
    assert [each.name for each in folder.later(first)] == [second.name]
    assert folder.later(second) == []


def test_backups_of_an_earlier_version_are_first_in_order_and_can_be_built_upon(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    old = of_format_1(backed_up(source, folder))
    source.put_new_cells(rides(100, 50))
    onto = backed_up(source, folder, old)
    assert [each.name for each in folder.look()[0]] == [old.name, onto.name]
    assert verify(folder.chain(onto)) == []
    with restored_into(tmp_path / "new", folder, old) as store:
        store.put_new_cells(rides(200, 60))
        with pytest.raises(ProtectData, match="is not the log that backup"):
            backed_up(store, folder, without_history(folder, onto))


def test_the_sequence_rises_above_backups_that_are_damaged(
    source: Datastore, folder: BackupFolder
) -> None:
    first, second = backed_up(source, folder), backed_up(source, folder)
    flip(second.path / MANIFEST)
    third = backed_up(source, folder)
    assert [each.manifest.sequence for each in (first, second, third)] == [1, 2, 3]
    assert folder.get(None).name == third.name, "the damaged one is known to be older"
    assert folder.path.joinpath(third.name, MARKER).exists()
    flip(third.path / MANIFEST)
    with pytest.raises(DataDamaged, match="Which backup is the newest is not known"):
        folder.get(None)


def test_the_newest_is_that_of_the_datastore_that_was_asked_for(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    ours = backed_up(source, folder)
    with Datastore.open_embedded(tmp_path / "others", "others", SHARDS) as other:
        theirs = backed_up(other, folder)
        set_failpoint("backup.before_manifest", "raise")
        with pytest.raises(FailpointReached):
            backed_up(other, folder)
    assert folder.get(None).name == theirs.name
    assert folder.get(None, "trips").name == ours.name
    assert folder.later(ours) == []
    with pytest.raises(InvalidRequest, match="backups of datastores others, trips: name one"):
        decide(folder, 30, NOW_US)
    assert going(decide(folder, 1e6, NOW_US, "trips")) == {}
    backed_up(source, folder)
    [left] = [each for each in folder.look()[1] if each.marker is not None]
    assert left.marker is not None
    assert left.marker.datastore == "others"


# --- prune ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["manifest", "missing file", "short file", "chain"])
def test_a_damaged_backup_counts_as_none_and_goes_when_it_is_old_and_a_whole_newer_one_stays(
    source: Datastore, folder: BackupFolder, damage: str
) -> None:
    base = aged(backed_up(source, folder), 50)
    bad = aged(backed_up(source, folder, base if damage == "chain" else None), 48)
    if damage == "chain":
        aged(base, 49)  # another manifest than the one that the increment remembers
    elif damage == "manifest":
        marker = read_marker(bad.place)
        assert marker is not None
        write_marker(
            bad.place, msgspec.structs.replace(marker, created_at_us=bad.manifest.created_at_us)
        )
        flip(bad.path / MANIFEST)
    elif damage == "missing file":
        (bad.path / "cells-0000").unlink()
    elif damage == "short file":
        (bad.path / "cells-0000").write_bytes((bad.path / "cells-0000").read_bytes()[:-1])
    with pytest.raises(ProtectData, match="Take a full one first"):
        decide(folder, 30, NOW_US)
    assert going(decide(folder, 60, NOW_US)) == {}
    assert list(decide(folder, 60, NOW_US).damaged) == [bad.name], "it is said, and stays for now"
    whole = aged(backed_up(source, folder), 1)
    decision = decide(folder, 30, NOW_US)
    assert going(decision) == {base.name: "expired", bad.name: "damaged"}
    assert [each.name for each in decision.stays] == [whole.name]
    remove(folder, decision.goes)
    assert {place.name for place in folder.path.iterdir() if place.is_dir()} == {whole.name}


def test_an_increment_on_a_damaged_backup_is_damaged_too(
    source: Datastore, folder: BackupFolder
) -> None:
    base = backed_up(source, folder)
    onto = backed_up(source, folder, base)
    (base.path / "state").unlink()
    assert sorted(decide(folder, 1e5, NOW_US).damaged) == sorted([base.name, onto.name])


def test_pieces_of_a_log_that_do_not_follow_each_other_are_found_by_verify(
    source: Datastore, folder: BackupFolder
) -> None:
    base = backed_up(source, folder)
    end = base.manifest.logs[0].watermark
    without = [each for each in base.manifest.segments if each.shard != 0]
    changed = Backup(
        base.place, msgspec.structs.replace(base.manifest, segments=without), base.sha256
    )
    assert verify([changed]) == [f"backup {base.name}: shard 0 lacks cells 0 to {end - 1}"]


def test_no_backup_is_pruned_while_the_newer_one_is_rotten_inside(
    source: Datastore, folder: BackupFolder
) -> None:
    old = aged(backed_up(source, folder), 40)
    new = aged(backed_up(source, folder), 1)
    assert going(decide(folder, 30, NOW_US)) == {old.name: "expired"}
    flip(new.path / "cells-0000")
    with pytest.raises(
        ProtectData,
        match=r"no whole backup would be left.*cells-0000: its content differs from its SHA-256",
    ):
        decide(folder, 30, NOW_US)
    newest = aged(backed_up(source, folder), 0)
    assert check_files([newest]) == []
    assert going(decide(folder, 30, NOW_US)) == {old.name: "expired"}


def test_an_old_backup_of_an_earlier_version_is_pruned_by_its_manifest(
    source: Datastore, folder: BackupFolder
) -> None:
    whole, broken = (of_format_1(aged(backed_up(source, folder), 40)) for _ in range(2))
    flip(broken.path / MANIFEST)
    aged(backed_up(source, folder), 1)
    decision = decide(folder, 30, NOW_US)
    assert going(decision) == {whole.name: "expired"}
    remove(folder, decision.goes)
    assert (whole.path.exists(), broken.path.exists()) == (False, True)


def test_no_backup_of_another_store_of_that_name_lets_the_last_one_of_this_go(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    ours = aged(backed_up(source, folder), 40)
    with Datastore.open_embedded(tmp_path / "staging", "trips", SHARDS) as staging:
        with pytest.raises(ProtectData, match="another store of that name") as refused:
            backed_up(staging, folder)
        assert staging.origin_id in str(refused.value)
        assert source.origin_id in str(refused.value)
        others = BackupFolder(tmp_path / "others")
        theirs = backed_up(staging, others)
    moved = msgspec.structs.replace(theirs.manifest, sequence=2)  # by an earlier version
    theirs.path.rename(folder.path / theirs.name)
    aged(rewritten(Backup(folder.place.inside(theirs.name), moved, ""), moved), 1)
    with pytest.raises(ProtectData, match=f"lineage begins with history {source.origin_id}"):
        decide(folder, 30, NOW_US)
    aged(backed_up(source, folder), 1)
    assert going(decide(folder, 30, NOW_US)) == {ours.name: "expired"}


def test_foreign_files_in_a_backups_folder_stay_and_are_named(
    source: Datastore, folder: BackupFolder
) -> None:
    old = aged(backed_up(source, folder), 40)
    (old.path / "notes.txt").write_text("keep me")
    (old.path / "cells-0001").symlink_to(folder.path.parent)
    aged(backed_up(source, folder), 1)
    decision = decide(folder, 30, NOW_US)
    [removal] = decision.goes
    assert removal.stays == ("cells-0001", "notes.txt")
    remove(folder, decision.goes)
    assert sorted(place.name for place in old.path.iterdir()) == ["cells-0001", "notes.txt"]


def test_a_removal_that_was_killed_is_ended_by_the_next(
    source: Datastore, folder: BackupFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = of_format_1(aged(backed_up(source, folder), 40))
    aged(backed_up(source, folder), 1)
    unlink = Path.unlink

    def failing(path: Path, missing_ok: bool = False) -> None:
        if path.name == "dictionaries":
            raise OSError(5, "Input/output error", str(path))
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", failing)
        with pytest.raises(StorageUnavailable, match="Input/output error"):
            remove(folder, decide(folder, 30, NOW_US).goes)
    assert old.path.exists()
    assert [each.marker.name for each in decide(folder, 30, NOW_US).goes] == [old.name]
    backed_up(source, folder)
    assert not old.path.exists()


# --- increments -----------------------------------------------------------------------------------


def test_an_increment_across_two_restores_of_one_backup_is_refused(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    base = without_history(folder, backed_up(source, folder))
    with (
        restored_into(tmp_path / "one", folder, base) as one,
        restored_into(tmp_path / "two", folder, base) as two,
    ):
        one.put_new_cells(rides(200, 60))
        two.put_new_cells(rides(300, 160))
        onto_one = without_history(folder, backed_up(one, folder, base))
        assert one.engine.leader_epochs(0) == two.engine.leader_epochs(0), (
            "epochs tell nothing here"
        )
        with pytest.raises(ProtectData, match=r"is not the log that backup.*full backup"):
            backed_up(two, folder, onto_one)
        assert verify(folder.chain(backed_up(one, folder, onto_one))) == []


def test_an_increment_on_a_store_that_was_made_again_under_the_same_name_is_refused(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    base = without_history(folder, backed_up(source, folder))
    with Datastore.open_embedded(tmp_path / "again", "trips", SHARDS) as again:
        again.put_new_cells(rides(0, 100))  # the same cells, in the same order
        again.put_new_cells(rides(100, 50))
        with pytest.raises(ProtectData, match="is not the log that backup"):
            backed_up(again, folder, base)


def test_an_erased_last_cell_still_proves_the_store(
    source: Datastore, folder: BackupFolder
) -> None:
    base = backed_up(source, folder)
    for shard, head in source.heads().items():
        [cell] = source.engine.scan(shard, head.watermark - 1, 1)
        source.erase_row(UUID(bytes=cell.row_key))
    assert backed_up(source, folder, base).manifest.cells == SHARDS


def test_logs_that_were_trimmed_to_their_ends_prove_the_store_by_the_time_of_their_last_cell(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    base = without_history(folder, backed_up(source, folder))
    for shard, head in source.heads().items():
        source.trim(shard, head.watermark)
    assert backed_up(source, folder, base).manifest.cells == 0
    with Datastore.open_embedded(tmp_path / "again", "trips", SHARDS) as again:
        again.put_new_cells(rides(0, 100))
        for shard, head in again.heads().items():
            again.trim(shard, head.watermark)
        with pytest.raises(ProtectData, match="is not the log that backup"):
            backed_up(again, folder, base)
    source.put_new_cells(rides(200, 40))
    for shard, head in source.heads().items():
        source.trim(shard, head.watermark)
    with pytest.raises(ProtectData, match="every log was trimmed beyond it"):
        backed_up(source, folder, base)


# --- later backups are readers --------------------------------------------------------------------


def test_a_restore_of_an_older_backup_beside_a_newer_one_is_refused(
    source: Datastore, folder: BackupFolder
) -> None:
    old = backed_up(source, folder)
    source.put_new_cells(rides(100, 50))
    new = backed_up(source, folder)
    ahead = readers_ahead([old], backup_readers(folder.later(old)))
    assert {reader.shard: reader.location for reader in ahead} == {
        log.shard: log.watermark for log in new.manifest.logs
    }
    with pytest.raises(ProtectData, match=f"backup {new.name} has come"):
        refuse_readers_ahead([old], ahead)
    assert backup_readers(folder.later(new)) == []


@pytest.mark.parametrize("marker", ["whole", "missing", "damaged"])
def test_a_restore_is_refused_while_a_later_manifest_cannot_be_read(
    source: Datastore, folder: BackupFolder, marker: str
) -> None:
    old, new = backed_up(source, folder), backed_up(source, folder)
    flip(new.path / MANIFEST)
    if marker == "missing":
        (new.path / MARKER).unlink()
    elif marker == "damaged":
        flip(new.path / MARKER)
    with pytest.raises(
        DataDamaged, match=f"nothing restored: {new.name}, which may be a later backup"
    ):
        folder.later(old)
    newest = backed_up(source, folder)
    if marker == "whole":
        assert folder.later(newest) == [], "it is known to be an earlier one"


def test_a_cell_beyond_the_epochs_of_a_backup_is_in_none_of_them(
    source: Datastore, folder: BackupFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A promotion beside the backup begins an epoch beyond its watermark."""
    ends = {shard: head.watermark for shard, head in source.heads().items()}
    epochs = source.engine.leader_epochs
    monkeypatch.setattr(
        source.engine,
        "leader_epochs",
        lambda shard: [*epochs(shard), (3, ends[shard]), (7, ends[shard] + 40)],
    )
    backup = backed_up(source, folder)
    assert [log.epochs for log in backup.manifest.logs] == [
        [(0, 0), (3, ends[shard])] for shard in sorted(ends)
    ]
    monkeypatch.setattr(
        source.engine,
        "leader_epochs",
        lambda shard: [*epochs(shard), (3, ends[shard]), (7, ends[shard] + 40)],
    )
    source.put_new_cells([NewCell(cell.row_key, "MORE", 1, b"{}") for cell in rides(0, 20)])
    assert backed_up(source, folder, backup).manifest.cells == 20
