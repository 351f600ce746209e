"""A store with cells, and a folder for its backups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.datastore import Datastore
from tests.support.backups_made import SHARDS
from tests.support.rides import rides


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "source", "trips", SHARDS) as store:
        store.put_new_cells(rides(0, 300))
        yield store


@pytest.fixture
def folder(tmp_path: Path) -> BackupFolder:
    return BackupFolder(tmp_path / "backups")
