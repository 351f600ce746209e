"""Backups of a cluster on a schedule while its master is killed: nothing is taken that may lack a
cell, the failure is informed, and the schedule resumes when another node is master."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cellfeed.bridge.backups.kept_state import belongs
from cellfeed.store.backups.due import Policy, Report
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.schedule import BackupSchedule
from cellfeed.store.backups.taking import Source
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import Replica
from tests.support.cluster_steps import cells, put_until_stored
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

EVERY_S = 0.5


def test_a_schedule_resumes_when_another_node_is_master(
    cluster: TestCluster, tmp_path: Path
) -> None:
    folder, stop, reports = BackupFolder(tmp_path / "backups"), threading.Event(), list[Report]()
    engine = ClusteredEngine(
        DATASTORE, SHARDS, {"c1": cluster.openers()}, read_first=Replica.MINION
    )

    def backed_up(count: int) -> bool:
        point = reports[-1].backup if reports else None
        chain = folder.chain(folder.get(point)) if point else []
        return sum(each.manifest.cells for each in chain) == count

    with Datastore(engine) as store:
        put_until_stored(engine, cells(range(100)))
        schedule = BackupSchedule(
            folder, lambda: Source(engine, belongs), Policy(EVERY_S, 86_400), reports.append
        )
        thread = threading.Thread(target=schedule.run, args=(stop,))
        thread.start()
        try:
            wait_until(lambda: backed_up(100), "the first backup is taken")
            cluster.servers["a"].kill()
            wait_until(lambda: bool(reports[-1].error), "the failure is reported", timeout_s=120)
            found, unreadable = folder.look()
            told = len(reports)
            assert unreadable == []
            assert reports[-1].backup == found[-1].name, "the recovery point stays"
            promote(cluster.admin, give_up=["a"])
            put_until_stored(engine, cells(range(100, 200)))
            wait_until(lambda: backed_up(200), "the next one is taken", timeout_s=120)
            assert any(each.error for each in reports[told - 1 :])
            assert reports[-1].error == ""
        finally:
            stop.set()
            thread.join(60)
            cluster.servers["a"].start()
        assert not thread.is_alive()
        assert [each.manifest.onto is None for each in folder.look()[0]].count(True) == 1
        assert store.heads()[0].leader_epoch > 0
