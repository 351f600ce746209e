"""Backups of clusters whose minions lack cells, or have damaged ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellfeed.store.backups.check import read_segment
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.verify import verify
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import Replica
from cellfeed.store.errors import DataDamaged, StorageUnavailable
from tests.support.cluster_backups import all_shown, backed_up, logs
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster
from tests.support.rides import rides
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def filled(cluster: TestCluster) -> Iterator[Datastore]:
    """A cluster with cells that every node has, read as a backup reads it: from minions first."""
    engine = ClusteredEngine(
        DATASTORE, SHARDS, {"c1": cluster.openers()}, read_first=Replica.MINION
    )
    with Datastore(engine) as store:
        assert all(result.acknowledged for result in store.put_new_cells(rides(0, 100)))
        wait_until(lambda: all_shown(store), "a minion has all of it")
        yield store


def test_a_backup_is_none_while_minions_do_not_apply_their_acknowledged_commits(
    filled: Datastore, cluster: TestCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in "bc":
        cluster.servers[node].sql("STOP SLAVE SQL_THREAD")
    assert all(result.acknowledged for result in filled.put_new_cells(rides(100, 100)))
    heads = filled.heads()
    behind = {
        shard: (head.watermark, head.next_added_id - 1)
        for shard, head in heads.items()
        if head.watermark < head.next_added_id
    }
    assert sum(last + 1 - first for first, last in behind.values()) == 100, (
        "acknowledged, and not shown"
    )
    monkeypatch.setattr("cellfeed.store.backups.ends.WAIT_S", 1.0)
    with pytest.raises(
        StorageUnavailable, match="no backup taken: cells that are acknowledged"
    ) as told:
        backed_up(filled, tmp_path)
    assert told.value.exit_code == 1
    for shard, (first, last) in behind.items():
        assert f"shard {shard} from {first} to {last}" in str(told.value)
    assert BackupFolder(tmp_path / "backups").look() == ([], [])
    monkeypatch.setattr("cellfeed.store.backups.ends.WAIT_S", 60.0)
    waiting = threading.Thread(
        target=lambda: [cluster.servers[node].sql("START SLAVE SQL_THREAD") for node in "bc"]
    )
    waiting.start()
    assert backed_up(filled, tmp_path).manifest.cells == 200
    waiting.join()


def test_a_body_that_is_rotten_on_a_minion_is_restored_from_the_master(
    filled: Datastore, cluster: TestCluster, tmp_path: Path
) -> None:
    good = logs(filled)
    wait_until(
        lambda: all(
            cluster.servers[node].sql("SELECT SUM(next_added_id) FROM trips_meta.shard_counter")
            == [(100,)]
            for node in "bc"
        ),
        "both have it",
    )
    for node in "bc":
        cluster.servers[node].sql(
            "SET SESSION sql_log_bin = 0",
            "UPDATE trips_0001.cell SET body = X'02FFFF' WHERE added_id = 3",
        )
    backup = backed_up(filled, tmp_path)
    assert verify([backup]) == []
    [segment] = [each for each in backup.manifest.segments if each.shard == 1]
    assert [cell for cells in read_segment(backup, segment) for cell in cells] == good[1]


def test_cells_that_every_node_has_lost_are_named(
    filled: Datastore, cluster: TestCluster, tmp_path: Path
) -> None:
    wait_until(
        lambda: all(
            cluster.servers[node].sql("SELECT SUM(next_added_id) FROM trips_meta.shard_counter")
            == [(100,)]
            for node in "bc"
        ),
        "both have it",
    )
    for node in "abc":
        cluster.servers[node].sql(
            "SET SESSION sql_log_bin = 0",
            "DELETE FROM trips_0001.cell WHERE added_id BETWEEN 3 AND 7",
        )
    with pytest.raises(DataDamaged, match="shard 1 has no cells from added_id 3 to 7"):
        backed_up(filled, tmp_path)
