"""Restores into clusters, killed at every failpoint, continue from their begin."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.bridge.backups.kept_state import belongs, restored
from cellfeed.cli.restore_point import Choice
from cellfeed.store.backups.check import read_state
from cellfeed.store.backups.create import create
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.restore import restore
from cellfeed.store.backups.restore_plan import plan
from cellfeed.store.backups.taking import Source
from cellfeed.store.cells.body_codec import ERASED_BODY
from cellfeed.store.cells.cell import RESTORED_COLUMN, StoredCell, moment
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import even_map
from cellfeed.store.clusters.operating.create import init_cluster
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import OutcomeUnknown, ProtectData, StorageUnavailable
from cellfeed.store.failpoints import FailpointReached, passes, set_failpoint
from tests.support.cluster_backups import (
    EPOCH,
    NOW_US,
    backed_up,
    ends,
    logs,
    opened,
    planned,
    servers_of,
    target_of,
)
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster, node_opener
from tests.support.rides import rides

pytestmark = pytest.mark.integration


KILLED = [
    "mysql.restore.after_begin",
    "cluster.restore.between_clusters",
    "restore.after_begin",
    "mysql.restore.after_load",
    "restore.after_complete",
    "restore.before_open",
    "mysql.restore.before_open",
]


def test_a_restore_that_continues_keeps_the_leader_epoch_that_it_began_with(
    embedded: Datastore, empty_mariadb: MariaDB, tmp_path: Path
) -> None:
    backup = backed_up(embedded, tmp_path)
    made = planned(tmp_path, backup)
    set_failpoint("restore.after_load", "raise")
    with target_of(servers_of([empty_mariadb], semi_sync=False)) as target:
        assert target.begun_epoch(backup) is None
        with pytest.raises(FailpointReached):
            restore(made, target)
    for other in (EPOCH - 1, EPOCH + 1):  # of runs that looked before that one began
        with (
            target_of(servers_of([empty_mariadb], semi_sync=False)) as target,
            pytest.raises(ProtectData, match=f"leader epoch {EPOCH}, this one would in {other}"),
        ):
            restore(replace(made, epoch=other), target)
    with target_of(servers_of([empty_mariadb], semi_sync=False)) as target:
        assert target.begun_epoch(backup) == EPOCH
        restore(made, target)
    with opened([empty_mariadb]) as store:
        assert {head.leader_epoch for head in store.heads().values()} == {EPOCH}


@pytest.mark.parametrize("failpoint", KILLED)
def test_a_restore_that_is_killed_is_opened_by_nobody_and_continues(
    failpoint: str, embedded: Datastore, empty_mariadb: MariaDB, tmp_path: Path
) -> None:
    backup = backed_up(embedded, tmp_path)
    new_ids = {1: ends(embedded)[1] + 50}
    set_failpoint(failpoint, "raise", 2 if failpoint == "mysql.restore.after_load" else 1)
    with (
        target_of(servers_of([empty_mariadb], semi_sync=False)) as target,
        pytest.raises(FailpointReached),
    ):
        restore(planned(tmp_path, backup, new_ids), target)
    assert passes(failpoint)
    with (
        pytest.raises(StorageUnavailable, match=r"reports a master|knows of no master"),
        opened([empty_mariadb]),
    ):
        pass
    with (
        closing(servers_of([empty_mariadb], semi_sync=False)) as admin,
        pytest.raises(ProtectData, match="is under way in cluster c1"),
    ):
        init_cluster(admin, even_map(DATASTORE, SHARDS, ["c1"]))
    other = backed_up(embedded, tmp_path / "other")
    with (
        target_of(servers_of([empty_mariadb], semi_sync=False)) as target,
        pytest.raises(ProtectData, match="is under way here"),
    ):
        restore(planned(tmp_path / "other", other), target)
    # Further ids are left out by now: the note of the run that was killed is in nobody's way.
    with target_of(servers_of([empty_mariadb], semi_sync=False)) as target:
        restore(planned(tmp_path, backup, {1: ends(embedded)[1] + 20}), target)
    with opened([empty_mariadb]) as store:
        found = logs(store)
        note = found[1].pop()
        assert (note.added_id, note.column_name) == (ends(embedded)[1] + 20, RESTORED_COLUMN)
        assert found == logs(embedded)


def test_a_killed_restore_to_a_point_in_time_continues_to_that_very_point(
    embedded: Datastore, empty_mariadb: MariaDB, tmp_path: Path
) -> None:
    folder = BackupFolder(tmp_path / "backups")
    first = backed_up(embedded, tmp_path)
    points = list[tuple[str, dict[int, list[StoredCell]]]]()
    for begin in (400, 500):
        embedded.put_new_cells(rides(begin, 100))
        found = logs(embedded)
        time.sleep(0.002)
        points.append((moment(embedded.state.now_us()).isoformat(), found))
        time.sleep(0.002)
    embedded.put_new_cells(rides(600, 100))
    create(folder, Source(embedded.engine, belongs), onto=first)

    def restored_to(at: str) -> None:
        chosen = Choice(folder, None, at, DATASTORE).checked(None, None)
        state = restored(read_state(chosen.state_of), NOW_US)
        made = plan(chosen.chain, state, [], {}, NOW_US, "a test", {}, EPOCH, chosen.backup)
        with target_of(servers_of([empty_mariadb], semi_sync=False)) as target:
            restore(made, target)

    (at, wanted), (other, _) = points
    set_failpoint("mysql.restore.after_load", "raise", 2)
    with pytest.raises(FailpointReached):
        restored_to(at)
    assert passes("mysql.restore.after_load") == 2
    with pytest.raises(ProtectData, match="is under way here"):
        restored_to(other)
    restored_to(at)
    with opened([empty_mariadb]) as store:
        assert logs(store) == wanted


def test_writes_to_a_cluster_that_a_killed_restore_had_opened_stay_and_the_other_one_is_opened(
    embedded: Datastore, servers: list[MariaDB], tmp_path: Path
) -> None:
    backup = backed_up(embedded, tmp_path)
    before = logs(embedded)
    first, second, _ = servers
    nodes = {"c1": {"a": node_opener(first.url)}, "c2": {"a": node_opener(second.url)}}

    def made() -> tuple[ClusterServers, ClusterServers]:
        return servers_of([first], "c1", semi_sync=False), servers_of(
            [second], "c2", semi_sync=False
        )

    def erase(shard: int, place: int) -> bytes:
        """In the datastore that was backed up, and there is a backup that reports it."""
        row_key = before[shard][place].row_key
        embedded.erase_row(UUID(bytes=row_key))
        backed_up(embedded, tmp_path)
        return row_key

    told = {erase(0, 0)}
    try:
        set_failpoint("cluster.restore.between_roles", "raise")
        with target_of(*made()) as target, pytest.raises(FailpointReached):
            restore(planned(tmp_path, backup), target)
        # The first one is a datastore like any other: rows are erased, cells are put, a log is
        # trimmed.
        meanwhile = before[1][10].row_key
        engine = ClusteredEngine(DATASTORE, SHARDS, nodes)
        with Datastore(engine) as store:
            with pytest.raises(
                OutcomeUnknown
            ):  # cluster c2 cannot say yet that it buffers nothing of the row
                store.erase_row(UUID(bytes=meanwhile))
            engine.clusters["c1"].trim(0, 5, 100)
            [put] = store.engine.put(
                [each for each in rides(400, 40) if shard_of(each.row_key, SHARDS) == 0][:1]
            )
            assert put.acknowledged
        # Meanwhile backups have come that report more.
        late, other = erase(1, 20), erase(2, 30)
        told |= {other, meanwhile}
        with target_of(*made()) as target:
            assert restore(planned(tmp_path, backup), target) == [late]
        with Datastore(ClusteredEngine(DATASTORE, SHARDS, nodes)) as store:
            heads = store.heads()
            assert (heads[0].log_start, heads[0].watermark) == (5, len(before[0]) + 2)
            found = logs(store)
            for shard, cells in before.items():
                kept = [each for each in found[shard] if each.added_id < len(cells)]
                assert [each[:5] for each in kept] == [
                    each[:5] for each in cells if each.added_id >= heads[shard].log_start
                ]
                for each in kept:
                    assert (each.body == ERASED_BODY) == (each.row_key in told)
            for row_key in (*told, late):
                assert store.erase_row(UUID(bytes=row_key)).cells == (row_key == late)
    finally:
        TestCluster("c1", dict(zip("abc", servers, strict=True)), servers_of(servers)).bare()
