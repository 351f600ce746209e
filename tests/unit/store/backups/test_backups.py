"""Backups of an embedded datastore: their contents, the effects of damage, increments, and restores
that never give an id out twice."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from cellfeed.bridge.backups.kept_state import belongs, restored, trigger_groups
from cellfeed.bridge.events.envelope import JsonFormat
from cellfeed.bridge.events.views import View
from cellfeed.bridge.gateway.apis.api_23_offset_for_leader_epoch import end_of_epoch
from cellfeed.bridge.gateway.log.encode import encode_range
from cellfeed.bridge.gateway.topics.topics import make_topic
from cellfeed.bridge.triggers.parked.cells import ParkedCell, ParkedCells
from cellfeed.store.backups.check import dictionaries_known, read_state, verify
from cellfeed.store.backups.create import Source, create
from cellfeed.store.backups.epochs import EPOCHS_LEFT_OUT
from cellfeed.store.backups.erasures import recorded_in, to_erase
from cellfeed.store.backups.folder import Backup, BackupFolder
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.backups.manifest import Reader, encode_manifest
from cellfeed.store.backups.marker import MANIFEST
from cellfeed.store.backups.prune import DAY_US, decide, remove
from cellfeed.store.backups.readers_ahead import readers_ahead, refuse_readers_ahead
from cellfeed.store.backups.register import Register
from cellfeed.store.backups.restore import restore
from cellfeed.store.backups.restore_plan import plan
from cellfeed.store.cells.body_codec import decode_body, forget_dictionaries, is_erased
from cellfeed.store.cells.cell import ERASED_COLUMN, RESTORED_COLUMN, NewCell, Outcome, StoredCell
from cellfeed.store.cells.dictionary import Dictionary
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.datastore import Datastore
from cellfeed.store.dictionaries.trainer import publish
from cellfeed.store.dictionaries.training import Sample, train
from cellfeed.store.engines.contract.state_limits import REVISIONS_SKIPPED
from cellfeed.store.errors import (
    CellfeedError,
    DataDamaged,
    InvalidRequest,
    NotFound,
    ProtectData,
    StorageUnavailable,
    Trimmed,
)
from cellfeed.store.failpoints import FailpointReached, passes, set_failpoint, watch_failpoint
from cellfeed.store.histories import NO_HISTORY, History
from cellfeed.store.indexes.catalog import BUILDING
from cellfeed.store.indexes.definition_file import parse_definition
from tests.support.rides import ride, rides

SHARDS = 4
NOW_US = 1_800_000_000_000_000
INDEX = (
    "{table: by_zone, datastore: trips, column_defs: [{column_name: BASE, fields: [{field:"
    " pickup_zone, type: string}]}]}"
)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "source", "trips", SHARDS) as store:
        store.put_new_cells(rides(0, 300))
        yield store


@cache
def trained_dictionary() -> Dictionary:
    return train(
        "BASE", [Sample(cell.row_key, cell.body_json) for cell in rides(0, 500)]
    ).dictionary


@pytest.fixture
def folder(tmp_path: Path) -> BackupFolder:
    return BackupFolder(tmp_path / "backups")


def backed_up(store: Datastore, folder: BackupFolder, onto: Backup | None = None) -> Backup:
    return create(folder, Source(store.engine, belongs), onto=onto)


def restored_into(
    directory: Path,
    folder: BackupFolder,
    backup: Backup,
    new_ids: dict[int, int] | None = None,
    readers: tuple[Reader, ...] = (),
) -> Datastore:
    made = plan(
        folder.chain(backup),
        restored(read_state(backup), NOW_US),
        readers,
        new_ids or {},
        NOW_US,
        "a test",
    )
    with SqliteTarget(directory / "trips", "trips", SHARDS) as target:
        restore(made, target)
    return Datastore.open_embedded(directory, "trips", SHARDS)


def to_be_erased(folder: BackupFolder, backup: Backup) -> dict[int, list[bytes]]:
    return to_erase(
        folder.chain(backup),
        read_state(backup),
        recorded_in(Register(folder.path), backup, folder.later(backup)),
    )


def logs(store: Datastore) -> dict[int, list[StoredCell]]:
    return {
        shard: store.engine.scan(shard, head.log_start, 10_000)
        for shard, head in store.heads().items()
    }


def ends(store: Datastore) -> dict[int, int]:
    return {shard: head.watermark for shard, head in store.heads().items()}


# --- round trips ----------------------------------------------------------------------------------


def test_everything_comes_back_and_goes_on_where_it_was(
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


def test_epochs_and_revisions_are_above_all_that_a_lost_store_may_have_given(
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


def test_a_kept_pace_and_progress_that_comes_to_its_end(
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


# --- increments -----------------------------------------------------------------------------------


def test_increments_hold_what_is_new_and_come_back_together(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    full = backed_up(source, folder)
    source.put_new_cells(rides(300, 50))
    first = backed_up(source, folder, full)
    source.put_new_cells(rides(350, 30))
    source.engine.trim(1, ends(source)[1] - 2)  # beyond all that the full one has of that shard
    second = backed_up(source, folder, first)
    assert (full.manifest.cells, first.manifest.cells) == (300, 50)
    assert second.manifest.cells <= 30
    assert [backup.name for backup in folder.chain(second)] == [full.name, first.name, second.name]
    assert verify(folder.chain(second)) == []
    with restored_into(tmp_path / "new", folder, second) as store:
        assert logs(store) == logs(source)
    with restored_into(tmp_path / "earlier", folder, first) as store:
        assert sum(map(len, logs(store).values())) == 350


def test_a_row_that_was_erased_between_two_backups_is_erased_in_what_is_restored_of_both(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    full = backed_up(source, folder)
    erased = logs(source)[0][0].row_key
    source.erase_row(UUID(bytes=erased))
    with restored_into(tmp_path / "new", folder, backed_up(source, folder, full)) as store:
        assert logs(store) == logs(source)
        assert (
            store.put_new_cells([NewCell(erased, "LATER", 1, b"{}")])[0].outcome is Outcome.FAILED
        )
    with restored_into(tmp_path / "whole", folder, backed_up(source, folder)) as store:
        assert logs(store) == logs(source)


@pytest.mark.parametrize("beyond", [0, 500])
def test_rows_that_later_backups_know_as_erased_are_erased_in_what_is_restored_of_an_older_one(
    source: Datastore, folder: BackupFolder, tmp_path: Path, beyond: int
) -> None:
    before = logs(source)
    first, second = (UUID(bytes=before[0][n].row_key) for n in (0, 1))
    source.erase_row(first)
    parked = ParkedCells(source.state)
    third = UUID(bytes=before[0][2].row_key)
    for number, row in enumerate((second, third)):
        cell = ParkedCell(
            group="g",
            topic="trips",
            partition=0,
            added_id=number,
            row_key=str(row),
            column_name="BASE",
            ref_key=0,
            error="no fare",
            attempts=1,
            parked_at_us=0,
            last_tried_at_us=0,
        )
        source.state.commit(dict(parked.entry(cell)))
    old = backed_up(source, folder)
    source.erase_row(second)
    later = backed_up(source, folder, old)
    newest = backed_up(source, folder)
    wanted = {0: [second.bytes]}
    assert to_be_erased(folder, old) == wanted
    assert to_be_erased(folder, later) == to_be_erased(folder, newest) == {}
    with dictionaries_known([old]):
        # A backup of an older program does not list its erasures: they are read from its cells. Nor
        # has it a register.
        unlisted = Backup(
            old.place,
            msgspec.structs.replace(old.manifest, erasures=None, register=None),
            old.sha256,
        )
        without = Backup(
            later.place, msgspec.structs.replace(later.manifest, register=None), later.sha256
        )
        none = Register(folder.path / "none")
        assert to_erase([unlisted], [], recorded_in(none, unlisted, [without])) == wanted
        # Nor is it asked what another datastore knows.
        others = Backup(
            later.place, msgspec.structs.replace(without.manifest, datastore="rides"), later.sha256
        )
        assert to_erase([unlisted], [], recorded_in(none, unlisted, [others])) == {}
    end = old.manifest.logs[0].watermark
    state = restored(read_state(old), NOW_US, [second.bytes])
    made = plan([old], state, [], {0: end + beyond} if beyond else {}, NOW_US, "a test", wanted)
    with SqliteTarget(tmp_path / "new" / "trips", "trips", SHARDS) as target:
        restore(made, target)
    with Datastore.open_embedded(tmp_path / "new", "trips", SHARDS) as store:
        [*cells, entry] = store.engine.scan(0, 0, 10_000)
        assert (entry.added_id, entry.row_key, entry.column_name) == (
            end + (beyond + 1 if beyond else 0),
            second.bytes,
            ERASED_COLUMN,
        )
        gone = {first.bytes, second.bytes}
        assert [is_erased(cell.body) for cell in cells] == [
            cell.row_key in gone or cell.column_name == ERASED_COLUMN for cell in cells
        ]
        assert [cell for cell in cells if cell.row_key not in gone and cell.added_id < end] == [
            cell for cell in before[0] if cell.row_key not in gone
        ]
        assert [each.row_key for each in ParkedCells(store.state).all()] == [str(third)]
        assert (
            store.put_new_cells([NewCell(second.bytes, "LATER", 1, b"{}")])[0].outcome
            is Outcome.FAILED
        )
        assert store.erase_row(second).cells == 0
        assert store.heads()[0].watermark == entry.added_id + 1


def test_no_file_has_an_erased_body_when_the_backups_from_before_are_older_than_the_declared_time(
    source: Datastore, folder: BackupFolder
) -> None:
    row = UUID(int=5)
    source.put_cell(row, "NOTES", 1, {"name": random.Random(5).randbytes(200).hex()})
    [stored] = source.engine.row_cells(row.bytes)

    def with_mark() -> set[str]:
        return {
            path.parent.name
            for path in folder.path.rglob("*")
            if path.is_file() and stored.body in path.read_bytes()
        }

    old = aged(backed_up(source, folder), 31)
    source.erase_row(row)
    backed_up(source, folder, old)
    assert with_mark() == {old.name}
    new = aged(backed_up(source, folder), 1)
    remove(folder, decide(folder, 30, NOW_US).goes)
    assert [backup.name for backup in folder.look()[0]] == [new.name]
    assert with_mark() == set()


def without_history(folder: BackupFolder, backup: Backup) -> Backup:
    """As an older program wrote it."""
    (backup.path / MANIFEST).write_bytes(
        encode_manifest(msgspec.structs.replace(backup.manifest, history=NO_HISTORY))
    )
    return folder.get(backup.name)


def test_an_increment_on_another_log_is_refused(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    old = without_history(folder, backed_up(source, folder))
    source.put_new_cells(rides(300, 50))
    newer = without_history(folder, backed_up(source, folder))
    with restored_into(tmp_path / "new", folder, old) as store:
        store.put_new_cells(rides(600, 200))
        with pytest.raises(ProtectData, match="is not the log that backup"):
            backed_up(store, folder, newer)
        assert backed_up(store, folder, old).manifest.cells == 200
    with (
        Datastore.open_embedded(tmp_path / "other", "others", SHARDS) as other,
        pytest.raises(ProtectData, match="is of datastore 'trips'"),
    ):
        backed_up(other, folder, old)


def test_a_chain_that_lacks_a_backup_is_no_backup(source: Datastore, folder: BackupFolder) -> None:
    full = backed_up(source, folder)
    increment = backed_up(source, folder, full)
    shutil.rmtree(full.path)
    with pytest.raises(DataDamaged, match=f"stands on {full.name}, which is not in"):
        folder.chain(increment)


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cells-0000", "state", "dictionaries", MANIFEST])
@pytest.mark.parametrize("damage", ["flipped", "cut", "longer", "missing"])
def test_every_file_that_is_damaged_is_found(
    source: Datastore, folder: BackupFolder, name: str, damage: str
) -> None:
    assert publish(source.engine.dictionaries, trained_dictionary(), 0)
    source.state.commit({"offsets/reports/trips/0": b"{}"})
    backup = backed_up(source, folder)
    path = backup.path / name
    content = path.read_bytes()
    middle = len(content) // 2
    if damage == "missing":
        path.unlink()
    else:
        changed = {
            "flipped": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
            "cut": content[:-1],
            "longer": content + b"\n",
        }
        path.write_bytes(changed[damage])
    if name == MANIFEST:
        with pytest.raises((DataDamaged, NotFound)):
            folder.get(backup.name)
        return
    wrong = verify([backup])
    assert wrong
    assert all(f"{backup.name}/{name}" in line for line in wrong)


def test_damage_that_lengths_and_checksums_do_not_show_is_shown_by_the_digest(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    backup = backed_up(source, folder)
    [first, *others] = backup.manifest.segments
    manifest = msgspec.structs.replace(
        backup.manifest, segments=[msgspec.structs.replace(first, digest="0" * 64), *others]
    )
    changed = Backup(backup.place, manifest, backup.sha256)
    [line] = verify([changed])
    assert "their digest is another one" in line
    made = plan([changed], [], [], {}, NOW_US, "a test")
    with (
        SqliteTarget(tmp_path / "new" / "trips", "trips", SHARDS) as target,
        pytest.raises(DataDamaged),
    ):
        restore(made, target)
    assert not (tmp_path / "new" / "trips").exists()


def test_a_format_of_a_newer_program_is_refused(
    source: Datastore, folder: BackupFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellfeed.store.backups.create.PLAIN", 4)
    with pytest.raises(ProtectData, match="of format 4"):
        backed_up(source, folder)
    assert "of format 4" in folder.look()[1][0].reason


# --- kills ----------------------------------------------------------------------------------------


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
def test_a_backup_that_is_killed_is_none_and_the_next_one_removes_it(
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


def test_what_has_to_be_done_elsewhere_is_done_before_anybody_can_use_the_store(
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


def test_nobody_opens_a_store_that_is_being_restored(
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
def test_what_no_restore_has_made_in_the_place_of_its_own_folder_stays(
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


# --- readers --------------------------------------------------------------------------------------


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


def test_ids_that_were_left_out_have_no_cell_and_every_reader_passes_them(
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


# --- state ----------------------------------------------------------------------------------------


def test_an_index_comes_back_as_a_version_to_be_built_and_its_groups_offsets_do_not(
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


# --- the folder -----------------------------------------------------------------------------------


def test_what_is_older_than_the_declared_time_goes_with_all_that_stands_on_it(
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


def aged(backup: Backup, days: int) -> Backup:
    """As if it had been taken so many days before ``NOW_US``, by the clock."""
    manifest = msgspec.structs.replace(backup.manifest, created_at_us=NOW_US - days * DAY_US)
    (backup.path / MANIFEST).write_bytes(encode_manifest(manifest))
    return BackupFolder(backup.path.parent).get(backup.name)


def test_one_at_a_time_makes_backups_in_a_folder(source: Datastore, folder: BackupFolder) -> None:
    with folder.locked(), pytest.raises(InvalidRequest, match="another backup is being made"):
        backed_up(source, folder)
    with pytest.raises(NotFound):
        folder.get(None)
    for name in ("../source", "a/b"):
        with pytest.raises(CellfeedError):
            folder.get(name)
