"""Erased rows stay erased in every restored store: the register knows them, with any fate of logs,
manifests and clocks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from cellfeed.bridge.backups.kept_state import belongs, restored
from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.check import read_state
from cellfeed.store.backups.create import create
from cellfeed.store.backups.erasures import recorded_in, to_erase
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.backups.manifest import encode_manifest
from cellfeed.store.backups.marker import MANIFEST, MARKER
from cellfeed.store.backups.places.local import LocalPlace
from cellfeed.store.backups.prune import decide, remove
from cellfeed.store.backups.register import FILES, Register
from cellfeed.store.backups.register_entries import NOT_DONE
from cellfeed.store.backups.restore import restore
from cellfeed.store.backups.restore_plan import plan
from cellfeed.store.backups.taking import Source
from cellfeed.store.cells.body_codec import is_erased
from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.sqlite.state import SqliteState
from cellfeed.store.erasures import DONE, ErasureNotes, done_of
from cellfeed.store.errors import DataDamaged
from cellfeed.store.failpoints import FAILPOINTS, FailpointReached, set_failpoint
from tests.support.rides import rides

ROW = UUID(int=7)
NOW_US = 1_900_000_000_000_000


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Datastore]:
    """Of one shard, with three cells of the row among others."""
    with Datastore.open_embedded(tmp_path / "source", shards=1) as store:
        store.put_new_cells(rides(0, 10))
        store.put_cells(
            [(ROW, "BASE", number, {"name": "Jane D. Roe", "n": number}) for number in range(3)]
        )
        store.put_new_cells(rides(10, 10))
        yield store


@pytest.fixture
def folder(tmp_path: Path) -> BackupFolder:
    return BackupFolder(tmp_path / "backups")


def backed_up(store: Datastore, folder: BackupFolder, onto: Backup | None = None) -> Backup:
    return create(folder, Source(store.engine, belongs), onto=onto)


def restored_into(
    directory: Path, folder: BackupFolder, backup: Backup, beyond: int = 0
) -> Datastore:
    """As the command does it."""
    chain, state = folder.chain(backup), read_state(backup)
    erased = to_erase(
        chain, state, recorded_in(Register(folder.path), backup, folder.later(backup))
    )
    new_ids = {0: backup.manifest.logs[0].watermark + beyond} if beyond else {}
    gone = [row_key for row_keys in erased.values() for row_key in row_keys]
    made = plan(chain, restored(state, NOW_US, gone), [], new_ids, NOW_US, "a test", erased)
    with SqliteTarget(directory / "trips", "trips", 1) as target:
        restore(made, target)
    return Datastore.open_embedded(directory, shards=1)


def bodies(store: Datastore) -> int:
    return sum(not is_erased(cell.body) for cell in store.engine.row_cells(ROW.bytes))


def trim_all(store: Datastore) -> None:
    store.trim(0, store.heads()[0].watermark)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


# --- how erased rows came back --------------------------------------------------------------------


def test_an_erased_row_does_not_return_after_a_trim_and_a_full_backup(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    old = backed_up(source, folder)
    source.erase_row(ROW)
    trim_all(source)
    new = backed_up(source, folder)
    assert new.manifest.erasures == [], "no log and no manifest names it any more"
    with restored_into(tmp_path / "new", folder, old) as store:
        assert bodies(store) == 0
        assert (
            store.put_new_cells([NewCell(ROW.bytes, "LATER", 1, b"{}")])[0].outcome
            is Outcome.FAILED
        )


def test_an_erased_row_does_not_return_when_the_only_backup_that_knew_of_it_is_gone(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    old = backed_up(source, folder)
    source.erase_row(ROW)
    knew = backed_up(source, folder, old)
    shutil.rmtree(knew.path)
    with restored_into(tmp_path / "new", folder, old) as store:
        assert bodies(store) == 0


def test_an_erased_row_does_not_return_with_a_damaged_later_manifest(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    old = backed_up(source, folder)
    source.erase_row(ROW)
    flip(backed_up(source, folder, old).path / MANIFEST)
    with pytest.raises(DataDamaged, match="may be a later backup"):
        restored_into(tmp_path / "new", folder, old)


def test_an_erased_row_does_not_return_with_a_clock_that_went_back(
    source: Datastore, folder: BackupFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = backed_up(source, folder)
    monkeypatch.setattr(SqliteState, "now_us", lambda _: old.manifest.created_at_us - 3_600_000_000)
    source.erase_row(ROW)
    new = backed_up(source, folder, old)
    assert new.manifest.created_at_us < old.manifest.created_at_us
    with restored_into(tmp_path / "new", folder, old) as store:
        assert bodies(store) == 0


def test_an_erased_row_does_not_return_when_a_backup_ends_before_the_erasure_in_the_log(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    """As of one whose minion was behind: its manifest names no erasure."""
    old = backed_up(source, folder)
    end = source.heads()[0].watermark
    source.erase_row(ROW)
    behind = backed_up(source, folder, old)
    assert behind.manifest.logs[0].watermark == end + 1
    (behind.path / MANIFEST).write_bytes(
        encode_manifest(msgspec.structs.replace(behind.manifest, erasures=[]))
    )
    with restored_into(tmp_path / "new", folder, old) as store:
        assert bodies(store) == 0


def test_an_erased_row_does_not_return_when_its_erasure_was_requested_and_not_done(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    old = backed_up(source, folder)
    ErasureNotes(source.state).begin(ROW)
    backed_up(source, folder)
    assert [each.added_id for each in Register(folder.path).entries()] == [NOT_DONE]
    with restored_into(tmp_path / "new", folder, old) as store:
        assert bodies(store) == 0


@pytest.mark.parametrize(
    "point",
    sorted(name for name in FAILPOINTS if name.startswith(("datastore.erase.", "sqlite.erase."))),
)
def test_an_erased_row_does_not_return_when_the_erasure_was_killed_at_any_step(
    point: str, source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    old = backed_up(source, folder)
    set_failpoint(point, "raise")
    with suppress(FailpointReached):
        source.erase_row(ROW)
    backed_up(source, folder)
    with restored_into(tmp_path / "new", folder, old) as store:
        assert bodies(store) == 0


def test_an_erased_row_does_not_return_by_a_restore_of_a_restored_store(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    old = backed_up(source, folder)
    source.erase_row(ROW)
    backed_up(source, folder)
    with restored_into(tmp_path / "one", folder, old, beyond=1_000) as one:
        [entry] = one.state.list(DONE)
        told = one.engine.scan(0, done_of(entry.key, entry.value)[1].added_id, 1)
        assert [(cell.row_key, cell.column_name) for cell in told] == [(ROW.bytes, "$erased")]
        trim_all(one)
        one.put_new_cells(rides(30, 5))
        again = backed_up(one, folder)
    for number, backup in enumerate((old, again)):
        with restored_into(tmp_path / f"two-{number}", folder, backup) as two:
            assert bodies(two) == 0


# --- a row that was put again ---------------------------------------------------------------------


def test_a_row_that_was_put_again_after_a_trim_stays(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    old = backed_up(source, folder)
    source.erase_row(ROW)
    trim_all(source)
    assert source.put_cell(ROW, "BASE", 9, {"name": "somebody else"}).acknowledged
    new = backed_up(source, folder)
    with restored_into(tmp_path / "new", folder, new) as store:
        assert bodies(store) == 1, "no acknowledged cell is lost"
    with restored_into(tmp_path / "old", folder, old) as store:
        assert bodies(store) == 0
    source.erase_row(ROW)
    trim_all(source)
    backed_up(source, folder)
    with restored_into(tmp_path / "newer", folder, new) as store:
        assert bodies(store) == 0, "erased once more since"


def test_a_row_that_was_put_again_stays_although_its_erasure_was_once_seen_undone(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    ErasureNotes(source.state).begin(ROW)
    backed_up(source, folder)
    source.erase_row(ROW)
    trim_all(source)
    assert source.put_cell(ROW, "BASE", 9, {"name": "somebody else"}).acknowledged
    new = backed_up(source, folder)
    assert [each.added_id for each in Register(folder.path).entries()] == [NOT_DONE, 23]
    with restored_into(tmp_path / "new", folder, new) as store:
        assert bodies(store) == 1
    ErasureNotes(source.state).begin(ROW)
    backed_up(source, folder)
    with restored_into(tmp_path / "newer", folder, new) as store:
        assert bodies(store) == 0, "asked for once more since"


def test_a_row_that_was_put_again_in_a_restored_store_with_lower_ids_stays(
    source: Datastore, folder: BackupFolder, tmp_path: Path
) -> None:
    old = backed_up(source, folder)
    source.put_new_cells(rides(20, 50))
    source.erase_row(ROW)
    shutil.rmtree(backed_up(source, folder).path)
    with restored_into(tmp_path / "one", folder, old) as one:
        trim_all(one)
        assert one.put_cell(ROW, "BASE", 9, {"name": "somebody else"}).acknowledged
        new = backed_up(one, folder)
    assert [each.added_id for each in Register(folder.path).entries()] == [73, 23]
    with restored_into(tmp_path / "two", folder, new) as two:
        assert bodies(two) == 1


# --- the register ---------------------------------------------------------------------------------


def test_the_register_outlives_every_backup_and_has_each_erasure_once(
    source: Datastore, folder: BackupFolder
) -> None:
    source.erase_row(ROW)
    for _ in range(3):
        backup = backed_up(source, folder)
    [entry] = Register(folder.path).entries([(backup.name, backup.manifest.register)])
    assert (entry.row_key, entry.added_id, entry.shard) == (ROW.hex, 23, 0)
    for each in folder.look()[0]:
        shutil.rmtree(each.path)
    assert Register(folder.path).entries() == [entry]
    remove(folder, decide(folder, 0, NOW_US).goes)
    assert Register(folder.path).entries() == [entry]


def test_erasures_from_before_the_register_are_read_from_logs_and_manifests(
    source: Datastore, folder: BackupFolder
) -> None:
    source.erase_row(ROW)
    source.state.commit(
        {entry.key: None for entry in source.state.list(DONE)}
    )  # as an earlier version has left it
    first = backed_up(source, folder)
    assert [each.row_key for each in Register(folder.path).entries()] == [ROW.hex]
    for name in FILES:
        (folder.path / name).unlink()
    (first.path / MARKER).unlink()
    (first.path / MANIFEST).write_bytes(
        encode_manifest(msgspec.structs.replace(first.manifest, format_version=1, register=None))
    )
    trim_all(source)
    backed_up(source, folder)
    assert [each.row_key for each in Register(folder.path).entries()] == [ROW.hex]


@pytest.mark.parametrize("damage", ["flip", "cut", "shorter", "missing", "older", "empty"])
def test_a_restore_and_a_backup_need_one_good_copy(
    source: Datastore, folder: BackupFolder, tmp_path: Path, damage: str
) -> None:
    first = backed_up(source, folder)
    older = (folder.path / FILES[0]).read_bytes()
    source.erase_row(ROW)
    backup = backed_up(source, folder)
    whole = (folder.path / FILES[0]).read_bytes()
    assert len(whole) > len(older)
    digit = whole.index(ROW.hex.encode()) + 31  # another row key, and JSON as before
    damaged = {
        "flip": whole[:digit] + bytes([whole[digit] ^ 1]) + whole[digit + 1 :],
        "cut": whole[:-1],
        "shorter": whole[:-20],
        "older": older,
        "empty": b"",
    }

    def hurt(name: str) -> None:
        if damage == "missing":
            (folder.path / name).unlink()
        else:
            (folder.path / name).write_bytes(damaged[damage])

    for name in FILES:
        hurt(name)
        with restored_into(tmp_path / f"beside-{name}", folder, first) as store:
            assert bodies(store) == 0
        (folder.path / name).write_bytes(whole)
    hurt(FILES[0])
    backed_up(source, folder)
    assert [(folder.path / name).read_bytes() for name in FILES] == [whole, whole], (
        "the next backup mends the other one"
    )
    for name in FILES:
        hurt(name)
    for number, each in enumerate((first, backup)):
        with pytest.raises(DataDamaged, match="register of erasures"):
            restored_into(tmp_path / f"new-{number}", folder, each)
    if damage != "missing":
        with pytest.raises(DataDamaged, match="register of erasures"):
            backed_up(source, folder)
    # The way out while the datastore is there: a new register, and a full backup.
    for name in FILES:
        (folder.path / name).unlink(missing_ok=True)
    newest = backed_up(source, folder)
    with restored_into(tmp_path / "newest", folder, newest) as store:
        assert bodies(store) == 0
    with pytest.raises(DataDamaged, match="register of erasures"):
        restored_into(tmp_path / "old", folder, first)


def test_two_differing_registers_are_not_merged_by_any_reader(
    source: Datastore, folder: BackupFolder
) -> None:
    backed_up(source, folder)
    other = BackupFolder(folder.path.with_name("other"))
    source.erase_row(ROW)
    backed_up(source, other)
    source.erase_row(UUID(bytes=rides(0, 1)[0].row_key))
    backed_up(source, folder)
    lines = (folder.path / FILES[0]).read_bytes().splitlines(keepends=True)
    (folder.path / FILES[1]).write_bytes(b"".join([lines[0], *reversed(lines[1:])]))
    with pytest.raises(DataDamaged, match="two registers of erasures that differ"):
        Register(folder.path).entries()


def test_a_kill_between_the_two_copies_loses_nothing(
    source: Datastore, folder: BackupFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    backed_up(source, folder)
    source.erase_row(ROW)
    write = LocalPlace.write

    def first_only(place: LocalPlace, name: str, content: bytes) -> None:
        if name == FILES[1]:
            raise FailpointReached
        write(place, name, content)

    with monkeypatch.context() as patched:
        patched.setattr(LocalPlace, "write", first_only)
        with pytest.raises(FailpointReached):
            backed_up(source, folder)
    assert [each.row_key for each in Register(folder.path).entries()] == [ROW.hex]
    backed_up(source, folder)
    assert (folder.path / FILES[0]).read_bytes() == (folder.path / FILES[1]).read_bytes()


def test_an_erasure_is_in_the_state_table_at_every_moment_from_its_start_on(
    source: Datastore,
) -> None:
    def known() -> bool:
        return bool(source.state.list(DONE) or source.unended_erasures.all())

    set_failpoint("datastore.erase.before_end", "raise")
    with pytest.raises(FailpointReached):
        source.erase_row(ROW)
    assert known()
    erased = source.erase_row(ROW)
    [entry] = source.state.list(DONE)
    assert done_of(entry.key, entry.value)[1].added_id == erased.added_id
    assert source.unended_erasures.all() == []
    trim_all(source)
    assert known()
