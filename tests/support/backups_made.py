"""A store and its backups that the tests of whole backups share."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from cellfeed.bridge.backups.kept_state import belongs, restored
from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.check import read_state
from cellfeed.store.backups.create import create
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.backups.manifest import Reader, encode_manifest
from cellfeed.store.backups.marker import MANIFEST
from cellfeed.store.backups.prune import DAY_US
from cellfeed.store.backups.restore import restore
from cellfeed.store.backups.restore_plan import plan
from cellfeed.store.backups.taking import Source
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.dictionary import Dictionary
from cellfeed.store.datastore import Datastore
from cellfeed.store.dictionaries.training import Sample, train
from cellfeed.store.histories import NO_HISTORY
from tests.support.rides import rides

SHARDS = 4

NOW_US = 1_800_000_000_000_000


@cache
def trained_dictionary() -> Dictionary:
    return train(
        "BASE", [Sample(cell.row_key, cell.body_json) for cell in rides(0, 500)]
    ).dictionary


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


def logs(store: Datastore) -> dict[int, list[StoredCell]]:
    return {
        shard: store.engine.scan(shard, head.log_start, 10_000)
        for shard, head in store.heads().items()
    }


def ends(store: Datastore) -> dict[int, int]:
    return {shard: head.watermark for shard, head in store.heads().items()}


def without_history(folder: BackupFolder, backup: Backup) -> Backup:
    """As an older program wrote it."""
    (backup.path / MANIFEST).write_bytes(
        encode_manifest(msgspec.structs.replace(backup.manifest, history=NO_HISTORY))
    )
    return folder.get(backup.name)


def aged(backup: Backup, days: int) -> Backup:
    """As if it had been taken so many days before ``NOW_US``, by the clock."""
    manifest = msgspec.structs.replace(backup.manifest, created_at_us=NOW_US - days * DAY_US)
    (backup.path / MANIFEST).write_bytes(encode_manifest(manifest))
    return BackupFolder(backup.path.parent).get(backup.name)
