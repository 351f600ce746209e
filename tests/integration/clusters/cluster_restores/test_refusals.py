"""Clusters that refuse a restore stay as they are."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.store.backups.restore import restore
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import even_map
from cellfeed.store.clusters.operating.create import init_cluster
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import ProtectData
from tests.support.cluster_backups import backed_up, opened, planned, servers_of, target_of
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster, node_opener
from tests.support.rides import rides

pytestmark = pytest.mark.integration


def test_a_restore_that_one_cluster_refuses_changes_none(
    embedded: Datastore, servers: list[MariaDB], tmp_path: Path
) -> None:
    """The first one is empty, and could be restored into; the second one has a cell, and stays
    armed: no put is acknowledged without its minion."""
    backup = backed_up(embedded, tmp_path)
    first, second, minion = servers
    divided = even_map(DATASTORE, SHARDS, ["c1", "c2"])
    nodes = {
        "c1": {"a": node_opener(first.url)},
        "c2": {"a": node_opener(second.url), "b": node_opener(minion.url)},
    }

    def made() -> tuple[ClusterServers, ClusterServers]:
        return servers_of([first], "c1"), servers_of([second, minion], "c2")

    def positions() -> list[object]:
        return [server.sql("SELECT @@GLOBAL.gtid_current_pos") for server in servers]

    try:
        for cluster in made():
            with closing(cluster):
                init_cluster(cluster, divided)
        with Datastore(ClusteredEngine(DATASTORE, SHARDS, nodes)) as store:
            of_second = [
                each
                for each in rides(0, 40)
                if store.engine.commit_group(shard_of(each.row_key, SHARDS)) == "c2"
            ]
            assert store.engine.put(of_second[:1])[0].acknowledged
        before = positions()
        with target_of(*made()) as target, pytest.raises(ProtectData, match="empty storage only"):
            restore(planned(tmp_path, backup), target)
        assert positions() == before, "nothing was written anywhere"
        assert second.sql("SELECT @@GLOBAL.rpl_semi_sync_master_enabled") == [(1,)], (
            "the live cluster is armed as it was"
        )
        with Datastore(ClusteredEngine(DATASTORE, SHARDS, nodes)) as store:
            assert all(result.acknowledged for result in store.engine.put(rides(0, 40)))
    finally:
        TestCluster("c1", dict(zip("abc", servers, strict=True)), servers_of(servers)).bare()


def test_a_restore_changes_no_cluster_while_a_server_of_another_one_has_foreign_data(
    embedded: Datastore, servers: list[MariaDB], tmp_path: Path
) -> None:
    backup = backed_up(embedded, tmp_path)
    servers[2].sql("CREATE DATABASE somebody_elses")
    try:
        with (
            target_of(servers_of(servers[:1], "c1"), servers_of(servers[1:], "c2")) as target,
            pytest.raises(ProtectData, match="somebody_elses"),
        ):
            restore(planned(tmp_path, backup), target)
        assert not any(
            name.startswith(DATASTORE)
            for server in servers
            for (name,) in server.sql("SHOW DATABASES")
        )
    finally:
        servers[2].sql("DROP DATABASE somebody_elses")
        TestCluster("c1", dict(zip("abc", servers, strict=True)), servers_of(servers)).bare()


def test_a_cluster_that_has_cells_is_refused_and_left_as_it_is(
    cluster: TestCluster, embedded: Datastore, tmp_path: Path
) -> None:
    backup = backed_up(embedded, tmp_path)
    servers = list(cluster.servers.values())
    with opened(servers) as store:
        assert store.put_new_cells(rides(0, 1))[0].acknowledged
        with (
            target_of(servers_of(servers)) as target,
            pytest.raises(ProtectData, match="empty storage only"),
        ):
            restore(planned(tmp_path, backup), target)
        assert store.put_new_cells(rides(1, 1))[0].acknowledged


def test_a_cluster_that_keeps_a_shard_that_has_left_is_refused(
    cluster: TestCluster, embedded: Datastore, tmp_path: Path
) -> None:
    backup = backed_up(embedded, tmp_path)
    servers = list(cluster.servers.values())
    servers[0].sql(
        "INSERT INTO trips_meta.shard_leaving VALUES (1, 'c2', 7, 0, 0, 0, 0, 0, NOW(6), NOW(6))"
    )
    with (
        target_of(servers_of(servers)) as target,
        pytest.raises(ProtectData, match="a move of shard 1 is under way"),
    ):
        restore(planned(tmp_path, backup), target)
    servers[0].sql("DELETE FROM trips_meta.shard_leaving")
