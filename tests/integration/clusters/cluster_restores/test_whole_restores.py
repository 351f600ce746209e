"""Backups come back into clusters of real MariaDB servers, byte for byte."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.bridge.backups.kept_state import belongs
from cellfeed.store.backups.create import create
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.backups.readers_ahead import IDS_LEFT_OUT
from cellfeed.store.backups.restore import restore
from cellfeed.store.backups.taking import Source
from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import LogRange
from cellfeed.store.errors import CellfeedError, ProtectData
from cellfeed.store.failpoints import FailpointReached, set_failpoint
from tests.support.cluster_backups import (
    EPOCH,
    all_shown,
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
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


def test_a_cluster_is_restored_byte_for_byte_on_master_and_minions(
    embedded: Datastore, servers: list[MariaDB], tmp_path: Path
) -> None:
    full = backed_up(embedded, tmp_path)
    erased = logs(embedded)[0][0].row_key
    embedded.erase_row(UUID(bytes=erased))
    backup = create(BackupFolder(tmp_path / "backups"), Source(embedded.engine, belongs), onto=full)
    try:
        with target_of(servers_of(servers)) as target:
            restore(planned(tmp_path, backup), target)
        with opened(servers) as store:
            assert (
                store.put_new_cells([NewCell(erased, "LATER", 1, b"{}")])[0].outcome
                is Outcome.FAILED
            )
            wait_until(lambda: all_shown(store), "a minion has all of it")
            assert logs(store) == logs(embedded)
            assert {head.leader_epoch for head in store.heads().values()} == {EPOCH}
            assert store.state.get("offsets/reports/trips/0") is not None
            assert store.state.get("groups/reports/leader") is None
            before = ends(store)
            [result] = store.put_new_cells(rides(400, 1))
            assert result.shard is not None
            assert result.added_id == before[result.shard]
            wait_until(
                lambda: all_shown(store),
                "a minion has that one, too: a backup goes up to the watermark",
            )
            # Back from the clusters into an embedded datastore: the same files, the same cells.
            again = backed_up(store, tmp_path / "again")
            assert again.manifest.cells == 402
            with SqliteTarget(tmp_path / "back" / DATASTORE, DATASTORE, SHARDS) as embedded_target:
                restore(planned(tmp_path / "again", again, epoch=2 * EPOCH), embedded_target)
            with Datastore.open_embedded(tmp_path / "back", DATASTORE, SHARDS) as back:
                assert logs(back) == logs(store)
        with (
            target_of(servers_of(servers)) as target,
            pytest.raises(ProtectData, match="every cluster was restored already"),
        ):
            restore(planned(tmp_path, backup), target)
    finally:
        TestCluster("c1", dict(zip("abc", servers, strict=True)), servers_of(servers)).bare()


def test_an_empty_cluster_is_taken_and_a_writer_that_knew_it_as_it_was_is_refused_meanwhile(
    cluster: TestCluster, embedded: Datastore, tmp_path: Path
) -> None:
    backup = backed_up(embedded, tmp_path)
    servers = list(cluster.servers.values())
    servers[0].sql(
        "UPDATE trips_meta.shard_counter SET epoch_base = 5"
    )  # as a move leaves it, of a shard that has no cell yet
    with opened(servers) as old:
        old.heads()

        def put_meanwhile() -> None:
            with pytest.raises(CellfeedError) as refused:
                old.engine.put(rides(900, 1))
            assert refused.value.definite

        with target_of(servers_of(servers)) as target:
            restore(planned(tmp_path, backup), target, before_open=put_meanwhile)
    with opened(servers) as store:
        wait_until(lambda: all_shown(store), "a minion has all of it")
        assert logs(store) == logs(embedded)
        assert {head.leader_epoch for head in store.heads().values()} == {EPOCH}
        assert all(result.acknowledged for result in store.put_new_cells(rides(400, 20)))


def test_rows_that_a_later_backup_knows_as_erased_are_erased_before_a_cluster_is_opened(
    embedded: Datastore, empty_mariadb: MariaDB, tmp_path: Path
) -> None:
    backup = backed_up(embedded, tmp_path)
    row = logs(embedded)[0][0].row_key
    embedded.erase_row(UUID(bytes=row))
    backed_up(embedded, tmp_path)
    set_failpoint("mysql.restore.before_open", "raise")
    for killed in (True, False):
        with (
            target_of(servers_of([empty_mariadb], semi_sync=False)) as target,
            pytest.raises(FailpointReached) if killed else nullcontext(),
        ):
            restore(planned(tmp_path, backup), target)
    with opened([empty_mariadb]) as store:
        assert [each[:5] for each in logs(store)[0][:-1]] == [
            each[:5] for each in logs(embedded)[0][:-1]
        ]
        assert [each.body for cells in logs(store).values() for each in cells] == [
            each.body for cells in logs(embedded).values() for each in cells
        ]
        assert logs(store)[0][-1][:4] == logs(embedded)[0][-1][:4]
        assert store.put_new_cells([NewCell(row, "LATER", 1, b"{}")])[0].outcome is Outcome.FAILED
        assert store.heads()[0].erasures


def test_two_clusters_are_opened_when_both_are_whole(
    embedded: Datastore, servers: list[MariaDB], tmp_path: Path
) -> None:
    backup = backed_up(embedded, tmp_path)
    first, second, _ = servers
    made = (servers_of([first], "c1", semi_sync=False), servers_of([second], "c2", semi_sync=False))
    try:
        set_failpoint("cluster.restore.between_roles", "raise")
        with target_of(*made) as target, pytest.raises(FailpointReached):
            restore(planned(tmp_path, backup), target)
        again = (
            servers_of([first], "c1", semi_sync=False),
            servers_of([second], "c2", semi_sync=False),
        )
        with target_of(*again) as target:
            restore(planned(tmp_path, backup), target)
        nodes = {"c1": {"a": node_opener(first.url)}, "c2": {"a": node_opener(second.url)}}
        with Datastore(ClusteredEngine(DATASTORE, SHARDS, nodes)) as store:
            assert logs(store) == logs(embedded)
            assert all(result.acknowledged for result in store.put_new_cells(rides(400, 40)))
    finally:
        TestCluster("c1", dict(zip("abc", servers, strict=True)), servers_of(servers)).bare()


def test_ids_that_were_left_out_are_passed_by_every_scan_of_a_cluster(
    embedded: Datastore, empty_mariadb: MariaDB, tmp_path: Path
) -> None:
    backup = backed_up(embedded, tmp_path)
    before = ends(embedded)
    with target_of(servers_of([empty_mariadb], semi_sync=False)) as target:
        restore(
            planned(tmp_path, backup, {shard: end + IDS_LEFT_OUT for shard, end in before.items()}),
            target,
        )
    with opened([empty_mariadb]) as store:
        for shard, end in before.items():
            for location in (end, end + 1, end + IDS_LEFT_OUT // 2, end + IDS_LEFT_OUT):
                for limit in (1, 150, 5_000):
                    assert [
                        cell.added_id for cell in store.engine.scan(shard, location, limit)
                    ] == [end + IDS_LEFT_OUT]
            assert store.engine.leader_epochs(shard) == [(0, 0), (EPOCH, end)]
        result = store.put_cell(UUID(int=7), "BASE", 1, {"n": 7})
        assert result.shard is not None
        assert result.added_id == before[result.shard] + IDS_LEFT_OUT + 1


def test_a_cell_above_the_watermark_is_not_shown_behind_ids_that_were_left_out(
    embedded: Datastore, servers: list[MariaDB], tmp_path: Path
) -> None:
    backup = backed_up(embedded, tmp_path)
    before = ends(embedded)
    try:
        with target_of(servers_of(servers, semi_sync=False)) as target:
            restore(
                planned(tmp_path, backup, {shard: end + 50 for shard, end in before.items()}),
                target,
            )
        with opened(servers) as store:
            wait_until(lambda: all_shown(store), "a minion has all of it")
            for minion in servers[1:]:
                minion.sql("STOP SLAVE")
            result = store.put_cell(UUID(int=7), "BASE", 1, {"n": 7})
            assert result.shard is not None
            start = before[result.shard]
            assert result.added_id == start + 51
            assert [cell.added_id for cell in store.engine.scan(result.shard, start, 1_000)] == [
                start + 50
            ]
            assert [
                cell.added_id
                for cell in store.engine.scan_many([LogRange(result.shard, start, 100)])[0]
            ] == [start + 50]
            for minion in servers[1:]:
                minion.sql("START SLAVE")
            wait_until(lambda: all_shown(store), "a minion has it")
            assert [cell.added_id for cell in store.engine.scan(result.shard, start, 1_000)] == [
                start + 50,
                start + 51,
            ]
    finally:
        TestCluster("c1", dict(zip("abc", servers, strict=True)), servers_of(servers)).bare()
