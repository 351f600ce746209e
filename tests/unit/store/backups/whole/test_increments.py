"""Increments: their contents, erased rows in them, and the chains that are refused."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from cellfeed.bridge.backups.kept_state import restored
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.check import dictionaries_known, read_state
from cellfeed.store.backups.erasures import recorded_in, to_erase
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.backups.prune import decide, remove
from cellfeed.store.backups.register import Register
from cellfeed.store.backups.restore import restore
from cellfeed.store.backups.restore_plan import plan
from cellfeed.store.backups.verify import verify
from cellfeed.store.cells.body_codec import is_erased
from cellfeed.store.cells.cell import ERASED_COLUMN, NewCell
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import (
    DataDamaged,
    ProtectData,
)
from tests.support.backups_made import (
    NOW_US,
    SHARDS,
    aged,
    backed_up,
    ends,
    logs,
    restored_into,
    without_history,
)
from tests.support.parked import parked_cell
from tests.support.rides import rides


def to_be_erased(folder: BackupFolder, backup: Backup) -> dict[int, list[bytes]]:
    return to_erase(
        folder.chain(backup),
        read_state(backup),
        recorded_in(Register(folder.path), backup, folder.later(backup)),
    )


def test_increments_have_only_new_cells_and_are_restored_together(
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


def test_a_row_erased_between_two_backups_is_erased_in_a_restore_of_both(
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
def test_rows_erased_before_a_later_backup_are_erased_in_a_restore_of_an_earlier_one(
    source: Datastore, folder: BackupFolder, tmp_path: Path, beyond: int
) -> None:
    before = logs(source)
    first, second = (UUID(bytes=before[0][n].row_key) for n in (0, 1))
    source.erase_row(first)
    parked = ParkedCells(source.state)
    third = UUID(bytes=before[0][2].row_key)
    for number, row in enumerate((second, third)):
        cell = parked_cell(
            0,
            number,
            group="g",
            row_key=str(row),
            ref_key=0,
            error="no fare",
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
        # Nor is another datastore's knowledge asked for.
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
