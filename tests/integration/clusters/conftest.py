"""A datastore on one cluster, and a folder for its backups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster


@pytest.fixture
def folder(tmp_path: Path) -> BackupFolder:
    return BackupFolder(tmp_path / "backups")


@pytest.fixture
def store(cluster: TestCluster) -> Iterator[Datastore]:
    with Datastore(ClusteredEngine(DATASTORE, SHARDS, {"c1": cluster.openers()})) as opened:
        yield opened
