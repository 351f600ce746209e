"""Backups that expire: a full one, and all that stand on it."""

from __future__ import annotations

from pathlib import Path

from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.prune import DAY_US, decide
from cellfeed.store.datastore import Datastore
from tests.support.backups_made import SHARDS, aged, backed_up
from tests.support.rides import rides


def test_a_chain_expires_with_its_full_backup_the_newest_increment_first(tmp_path: Path) -> None:
    """Else a chain that is continued for ever would never go, and nothing of it."""
    folder = BackupFolder(tmp_path / "backups")
    with Datastore.open_embedded(tmp_path / "source", "trips", SHARDS) as store:
        store.put_new_cells(rides(0, 20))
        full = aged(backed_up(store, folder), 400)
        store.put_new_cells(rides(20, 20))
        increment = backed_up(store, folder, full)
        newer = backed_up(store, folder)
    now_us = newer.manifest.created_at_us + DAY_US
    assert decide(folder, 1_000, now_us).goes == []
    decided = decide(folder, 30, now_us)
    assert [each.marker.name for each in decided.goes] == [increment.name, full.name]
    assert [each.name for each in decided.stays] == [newer.name]
