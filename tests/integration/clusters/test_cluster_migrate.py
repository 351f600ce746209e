"""``cluster migrate`` on a cluster of one real server: it finishes interrupted migrations, refuses
a fenced master, and needs a cluster that was made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import ShardMap
from cellfeed.store.clusters.operating.create import init_cluster
from cellfeed.store.clusters.operating.migrate import migrate_cluster
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.schema_steps import SCHEMA_VERSION
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import ProtectData, StorageUnavailable, WrongServerSettings
from tests.support.local_mariadb import MariaDB

pytestmark = pytest.mark.integration


@pytest.fixture
def cluster(empty_mariadb: MariaDB) -> Iterator[ClusterServers]:
    with closing(MySqlServer(empty_mariadb.url)) as server:
        yield ClusterServers("c1", "trips", 4, {"a": server}, semi_sync=False)


def run(cluster: ClusterServers, sql: str) -> None:
    with cluster.servers["a"].connection() as connection:
        query(connection, sql)


def test_an_older_schema_is_brought_up_once(
    cluster: ClusterServers, empty_mariadb: MariaDB
) -> None:
    init_cluster(cluster, ShardMap("trips", 4, 1, {"c1": [(0, 3)]}))
    assert migrate_cluster(cluster).steps == []
    run(cluster, "UPDATE trips_meta.datastore SET schema_version = schema_version - 1")
    with pytest.raises(ProtectData):
        MySqlEngine(MySqlServer(empty_mariadb.url), "trips", 4)
    done = migrate_cluster(cluster)
    assert (done.master, done.version, [step.version for step in done.steps]) == (
        "a",
        SCHEMA_VERSION,
        [SCHEMA_VERSION],
    )
    MySqlEngine(MySqlServer(empty_mariadb.url), "trips", 4).close()
    assert migrate_cluster(cluster).steps == []


def test_a_master_that_takes_no_writes_is_left_alone(cluster: ClusterServers) -> None:
    init_cluster(cluster, ShardMap("trips", 4, 1, {"c1": [(0, 3)]}))
    run(cluster, "SET GLOBAL read_only = 1")
    try:
        with pytest.raises(WrongServerSettings, match="read_only is ON, wanted OFF"):
            migrate_cluster(cluster)
    finally:
        run(cluster, "SET GLOBAL read_only = 0")


def test_servers_that_are_no_cluster_yet_have_nothing_to_migrate(cluster: ClusterServers) -> None:
    with pytest.raises(StorageUnavailable, match="no node reports a master"):
        migrate_cluster(cluster)
