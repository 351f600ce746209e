"""Every damage of a backup's files is found."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.backups.marker import MANIFEST
from cellfeed.store.backups.restore import restore
from cellfeed.store.backups.restore_plan import plan
from cellfeed.store.backups.verify import verify
from cellfeed.store.datastore import Datastore
from cellfeed.store.dictionaries.trainer import publish
from cellfeed.store.errors import (
    DataDamaged,
    NotFound,
    ProtectData,
)
from tests.support.backups_made import NOW_US, SHARDS, backed_up, trained_dictionary


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
