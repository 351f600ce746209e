"""A datastore on one cluster, and a folder for its backups; a cluster that replicates
asynchronously."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster, make_cluster


@pytest.fixture
def folder(tmp_path: Path) -> BackupFolder:
    return BackupFolder(tmp_path / "backups")


@pytest.fixture
def store(cluster: TestCluster) -> Iterator[Datastore]:
    with Datastore(ClusteredEngine(DATASTORE, SHARDS, {"c1": cluster.openers()})) as opened:
        yield opened


@pytest.fixture
def asynchronous(servers: list[MariaDB]) -> Iterator[TestCluster]:
    """Without semi-synchronous replication: a master acknowledges cells that no minion has."""
    made = make_cluster("c1", servers, semi_sync=False)
    yield made
    made.admin.close()
    made.bare()
