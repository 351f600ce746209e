"""Backups of clusters of real MariaDB servers, and back: raw copies, kills at every failpoint of a
restore, and refusals."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.bridge.backups.kept_state import belongs, restored
from cellfeed.cli.restore_point import Choice
from cellfeed.store.backups.check import read_segment, read_state, verify
from cellfeed.store.backups.create import Source, create
from cellfeed.store.backups.erasures import recorded_in, to_erase
from cellfeed.store.backups.folder import Backup, BackupFolder
from cellfeed.store.backups.into_clusters import ClusterTarget
from cellfeed.store.backups.into_sqlite import SqliteTarget
from cellfeed.store.backups.readers_ahead import IDS_LEFT_OUT
from cellfeed.store.backups.register import Register
from cellfeed.store.backups.restore import restore
from cellfeed.store.backups.restore_plan import Plan, plan
from cellfeed.store.cells.body_codec import ERASED_BODY
from cellfeed.store.cells.cell import RESTORED_COLUMN, NewCell, Outcome, StoredCell, moment
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import even_map
from cellfeed.store.clusters.operating.create import init_cluster
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import LogRange, Replica
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.errors import (
    CellfeedError,
    DataDamaged,
    OutcomeUnknown,
    ProtectData,
    StorageUnavailable,
)
from cellfeed.store.failpoints import FailpointReached, passes, set_failpoint
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster, node_opener
from tests.support.rides import rides
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

NOW_US = 1_800_000_000_000_000
EPOCH = 1_000
"""The number that these restores begin with, as those that continue: others draw theirs."""


def servers_of(servers: list[MariaDB], name: str = "c1", semi_sync: bool = True) -> ClusterServers:
    return ClusterServers(
        name,
        DATASTORE,
        SHARDS,
        {node: MySqlServer(server.url) for node, server in zip("abc", servers, strict=False)},
        semi_sync=semi_sync,
    )


def target_of(*clusters: ClusterServers) -> ClusterTarget:
    return ClusterTarget(
        clusters, even_map(DATASTORE, SHARDS, [cluster.name for cluster in clusters])
    )


@contextmanager
def opened(servers: list[MariaDB]) -> Iterator[Datastore]:
    nodes = {node: node_opener(server.url) for node, server in zip("abc", servers, strict=False)}
    with Datastore(ClusteredEngine(DATASTORE, SHARDS, {"c1": nodes})) as store:
        yield store


def logs(store: Datastore) -> dict[int, list[StoredCell]]:
    """Everything that is shown, shard by shard."""
    heads = store.heads()
    return {
        shard: (
            store.engine.scan(shard, head.log_start, 10_000)
            if head.watermark > head.log_start
            else []
        )
        for shard, head in heads.items()
    }


def ends(store: Datastore) -> dict[int, int]:
    return {shard: head.watermark for shard, head in store.heads().items()}


def all_shown(store: Datastore) -> bool:
    return all(head.watermark == head.next_added_id for head in store.heads().values())


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Datastore]:
    """Of as many shards as the clusters of these tests."""
    with Datastore.open_embedded(tmp_path / "source", DATASTORE, SHARDS) as store:
        store.put_new_cells(rides(0, 400))
        # the store's own thread reads it
        address = b'{"host": "127.0.0.1", "port": 9, "expires_at_us": 0}'
        store.state.commit(
            {"offsets/reports/trips/0": b"{}", "groups/reports/leader": b"{}", "wakeups/x": address}
        )
        yield store


def backed_up(store: Datastore, directory: Path) -> Backup:
    return create(BackupFolder(directory / "backups"), Source(store.engine, belongs))


def planned(
    directory: Path, backup: Backup, new_ids: dict[int, int] | None = None, epoch: int = EPOCH
) -> Plan:
    folder = BackupFolder(directory / "backups")
    chain = folder.chain(backup)
    state = read_state(backup)
    erased = to_erase(
        chain, state, recorded_in(Register(folder.path), backup, folder.later(backup))
    )
    return plan(chain, restored(state, NOW_US), [], new_ids or {}, NOW_US, "a test", erased, epoch)


def test_a_cluster_comes_back_byte_for_byte_on_master_and_minions(
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


def test_a_restore_changes_no_cluster_while_another_ones_servers_hold_something_else(
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


KILLED = [
    "mysql.restore.after_begin",
    "cluster.restore.between_clusters",
    "restore.after_begin",
    "mysql.restore.after_load",
    "restore.after_complete",
    "restore.before_open",
    "mysql.restore.before_open",
]


def test_a_restore_that_goes_on_keeps_the_leader_epoch_that_it_began_with(
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
def test_a_restore_that_is_killed_is_opened_by_nobody_and_goes_on(
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


def test_a_killed_restore_to_a_point_in_time_goes_on_to_that_very_point(
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


def test_what_was_done_to_a_cluster_that_a_killed_restore_had_opened_stays_and_the_other_one_is_opened(  # noqa: E501
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


# --- what a minion lacks, or has damaged ----------------------------------------------------------


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


def test_a_backup_while_minions_do_not_apply_what_they_acknowledged_is_none(
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


def test_a_body_that_is_rotten_on_a_minion_comes_from_the_master(
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
