"""A real cluster of one master and two minions: init, reads, the watermark, fail-over of reads,
promotion, the old master's return."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from uuid import uuid5

import pytest

from cellfeed.store.cells.cell import StoredCell, new_cell
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import even_map
from cellfeed.store.clusters.operating.auto_failover import AGAIN_S, DETECT_S, FailoverSupervisor
from cellfeed.store.clusters.operating.clone import clone
from cellfeed.store.clusters.operating.create import init_cluster
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.operating.promotion import Promotion
from cellfeed.store.clusters.operating.rejoin import follow_again, heard_epoch, is_prefix
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.clusters.serving.shown_heads import Watermark
from cellfeed.store.engines.contract.values import LogRange
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.operation_locks import promotion_lock
from cellfeed.store.engines.mysql.read_only import is_read_only, open_for_writes
from cellfeed.store.engines.mysql.replication import minion_status
from cellfeed.store.errors import ProtectData, StaleWriter, StorageUnavailable
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from tests.support.cluster_steps import (
    NAMESPACE,
    cells,
    checksums,
    eventually,
    open_engine,
    put_until_stored,
    shown,
)
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster, make_cluster

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]


def log(engine: ClusteredEngine) -> dict[int, list[tuple[int, bytes, bytes]]]:
    return {
        shard: [(c.added_id, c.row_key, c.body) for c in engine.scan(shard, 0, 10_000)]
        for shard in range(SHARDS)
    }


def test_three_bare_servers_become_a_cluster_and_doing_it_again_changes_nothing(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    results = engine.put(cells(range(100)))
    assert {result.outcome for result in results} == {Outcome.STORED}
    again = init_cluster(cluster.admin, even_map(DATASTORE, SHARDS, ["c1"]))
    assert (again.master, again.minions, again.was_there) == ("a", ["b", "c"], True)
    eventually(lambda: shown(engine) == 100, "all cells on a minion")
    rows = {
        name: server.sql(
            "CHECKSUM TABLE trips_0000.cell, trips_0001.cell, trips_meta.shard_counter"
        )
        for name, server in cluster.servers.items()
    }
    eventually(
        lambda: (
            rows["a"]
            == cluster.servers["c"].sql(
                "CHECKSUM TABLE trips_0000.cell, trips_0001.cell, trips_meta.shard_counter"
            )
        ),
        "the minion is a copy",
    )


def test_servers_with_foreign_data_are_not_made_a_cluster(servers: list[MariaDB]) -> None:
    servers[1].sql("CREATE DATABASE somebody_elses")
    try:
        with pytest.raises(ProtectData, match="somebody_elses"):
            make_cluster("c1", servers)
    finally:
        servers[1].sql("DROP DATABASE somebody_elses")


def test_a_cell_is_shown_only_when_a_minion_has_it(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    engine.put(cells(range(20)))
    eventually(lambda: shown(engine) == 20, "replicated")
    # Without its SQL thread a minion receives (so semi-synchronous commits continue) but applies
    # nothing.
    for name in "bc":
        cluster.servers[name].sql("STOP SLAVE SQL_THREAD")
    results = engine.put(cells(range(20, 40)))
    assert {result.outcome for result in results} == {Outcome.STORED}
    time.sleep(0.3)
    assert shown(engine) == 20
    assert sum(len(cells) for cells in log(engine).values()) == 20
    with_committed = open_engine(cluster, Watermark.COMMITTED)
    assert shown(with_committed) == 40
    with_committed.close()
    cluster.servers["b"].sql("START SLAVE SQL_THREAD")
    eventually(lambda: shown(engine) == 40, "one minion is enough")
    cluster.servers["c"].sql("START SLAVE SQL_THREAD")


def test_a_put_that_meets_one_promotion_after_another_may_be_tried_again(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    engine.put(cells(range(10)))
    # The first step of a promotion on its new master, before any node reports the role that goes
    # with it.
    cluster.servers["a"].sql("UPDATE trips_meta.shard_counter SET leader_epoch = leader_epoch + 1")
    with pytest.raises(
        StorageUnavailable, match=r"a promotion is under way.*nothing written"
    ) as refused:
        engine.put(cells(range(10, 20)))
    assert refused.value.retriable
    assert refused.value.definite
    cluster.servers["a"].sql("UPDATE trips_meta.shard_counter SET leader_epoch = leader_epoch - 1")
    assert {result.outcome for result in engine.put(cells(range(10, 20)))} == {Outcome.STORED}


def test_the_watermark_never_falls_when_the_minion_that_was_ahead_dies(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    cluster.servers["c"].sql("STOP SLAVE SQL_THREAD")
    engine.put(cells(range(30)))
    eventually(lambda: shown(engine) == 30, "the other minion has all")
    before = {shard: head.watermark for shard, head in engine.heads().items()}
    pid = cluster.servers["b"].process
    cluster.servers["b"].kill()
    assert pid is not None
    assert pid.returncode is not None
    for _ in range(20):
        assert {shard: head.watermark for shard, head in engine.heads().items()} == before
        time.sleep(0.02)
    assert sum(len(cells) for cells in log(engine).values()) == 30


def test_a_cell_is_the_newest_until_a_newer_one_is_shown_and_a_minion_that_is_behind_names_no_other(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    row = uuid5(NAMESPACE, "written twice")
    shard = shard_of(row.bytes, SHARDS)

    def superseded() -> set[int]:
        head = engine.heads()[shard]
        return engine.superseded(shard, 0, head.watermark, head.log_start, head.watermark)

    engine.put([new_cell(row, "BASE", 1, {})])
    eventually(lambda: shown(engine) == 1, "replicated")
    for name in "bc":
        cluster.servers[name].sql("STOP SLAVE SQL_THREAD")
    [second] = engine.put([new_cell(row, "BASE", 2, {})])
    assert (second.outcome, shown(engine)) == (Outcome.STORED, 1)
    assert superseded() == set(), "a promotion could still take the newer one back"
    cluster.servers["b"].sql("START SLAVE SQL_THREAD")
    eventually(lambda: shown(engine) == 2, "one minion has it")
    assert superseded() == {0}
    cluster.servers["a"].kill()
    cluster.servers["b"].kill()
    assert superseded() <= {0}, "of the minion that is left, which lacks the newer one"
    cluster.servers["a"].start()
    eventually(lambda: superseded() == {0}, "the master is back")
    cluster.servers["c"].sql("START SLAVE SQL_THREAD")


def test_a_shown_cell_is_unavailable_and_never_absent_when_only_a_minion_that_lacks_it_is_left(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    engine.put(cells(range(20)))
    eventually(lambda: shown(engine) == 20, "replicated")
    before = {shard: head.watermark for shard, head in engine.heads().items()}
    cluster.servers["c"].sql("STOP SLAVE SQL_THREAD")
    engine.put(cells(range(20, 80)))
    eventually(lambda: shown(engine) == 80, "the other minion has all")
    for name in "ab":
        cluster.servers[name].kill()
    for shard, first in before.items():
        assert engine.heads()[shard].watermark > first
        # It gives the cells that it has; of the rest nobody says that it is not there.
        assert [c.added_id for c in engine.scan(shard, 0, 1_000)] == list(range(first))
        with pytest.raises(StorageUnavailable, match="was shown"):
            engine.scan(shard, first, 1_000)
        with pytest.raises(StorageUnavailable, match="was shown"):
            engine.scan_many([LogRange(shard, 0, 10), LogRange(shard, first, 10)])
    cluster.servers["a"].start()
    eventually(
        lambda: sum(len(found) for found in log(engine).values()) == 80, "the master is back"
    )


def test_reads_continue_from_a_minion_when_the_master_is_gone_and_absence_is_not_reported(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    written = cells(range(50))
    engine.put(written)
    eventually(lambda: shown(engine) == 50, "replicated")
    before = log(engine)
    cluster.servers["a"].kill()
    found = engine.get([cell.triple for cell in written])
    assert all(located is not None for located in found)
    assert log(engine) == before
    with pytest.raises(StorageUnavailable, match="absence is not known"):
        engine.get([new_cell(uuid5(NAMESPACE, "never put"), "BASE", 1, {}).triple])
    with pytest.raises(StorageUnavailable):
        engine.put(cells(range(50, 51)))


def test_a_cell_that_is_nowhere_is_absent_while_the_master_answers(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    engine.put(cells(range(3)))
    eventually(lambda: shown(engine) == 3, "all cells on a minion")
    nowhere = cells(range(3, 4))[0]
    assert engine.get([nowhere.triple]) == [None]
    assert all(server.is_running() for server in cluster.servers.values())


@pytest.mark.parametrize("late", [1, 3])
def test_a_cell_that_a_minion_has_shown_is_read_although_its_master_shows_it_later(
    engine: ClusteredEngine, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    """The master waits for a minion before it shows a commit itself; the minions need not have it
    at the same time either."""
    engine.put(cells(range(10)))
    eventually(lambda: shown(engine) == 10, "replicated")
    scan_many, asked = MySqlEngine.scan_many, list[int]()

    def scan_later(node: MySqlEngine, ranges: Sequence[LogRange]) -> list[list[StoredCell]]:
        asked.append(len(ranges))
        return scan_many(node, ranges) if len(asked) > late else [[] for _ in ranges]

    monkeypatch.setattr(MySqlEngine, "scan_many", scan_later)
    heads = engine.heads()
    wanted = [LogRange(shard, 0, 10) for shard in range(SHARDS) if heads[shard].watermark]
    assert sum(map(len, engine.scan_many(wanted))) == 10
    assert len(asked) == late + 1


def test_a_paused_master_delays_no_read_for_long(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    engine.put(cells(range(10)))
    eventually(lambda: shown(engine) == 10, "replicated")
    cluster.servers["a"].pause()
    started_s = time.monotonic()
    assert sum(len(found) for found in log(engine).values()) == 10
    assert time.monotonic() - started_s < 15, (
        "one read time-out for the first, none for those after it"
    )
    cluster.servers["a"].resume()


def test_a_planned_promotion_loses_no_cell_and_ids_continue(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    engine.put(cells(range(40)))
    done = promote(cluster.admin)
    assert (done.old_master, done.epoch, done.fenced) == ("a", 1, True)
    put_until_stored(engine, cells(range(40, 80)))
    eventually(lambda: shown(engine) == 80, "the other minion follows")
    heads = engine.heads()
    assert {head.leader_epoch for head in heads.values()} == {1}
    assert [engine.leader_epochs(shard)[0] for shard in range(SHARDS)] == [(0, 0)] * SHARDS
    assert (
        sum(
            first
            for shard in range(SHARDS)
            for epoch, first in engine.leader_epochs(shard)
            if epoch == 1
        )
        == 40
    )
    ids = {shard: [added_id for added_id, _, _ in found] for shard, found in log(engine).items()}
    assert ids == {shard: list(range(len(found))) for shard, found in ids.items()}
    with pytest.raises(StorageUnavailable, match="read-only"):
        MySqlEngine(MySqlServer(cluster.servers["a"].url), DATASTORE, SHARDS).put(
            cells(range(80, 81))
        )


def test_kill_9_of_the_master_then_promotion_keeps_every_acknowledged_cell(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    acknowledged = cells(range(60))
    for cell in acknowledged:
        engine.put([cell])
    cluster.servers["a"].kill()
    done = promote(cluster.admin)
    assert not done.fenced
    put_until_stored(engine, cells(range(60, 70)))
    assert all(engine.get([cell.triple for cell in acknowledged]))
    # The old master returns: the minions had its cells, so it follows.
    cluster.servers["a"].start()
    role, _ = cluster_role(cluster.admin)
    assert is_prefix(cluster.admin, "a", role)
    follow_again(cluster.admin, "a")
    eventually(
        lambda: (
            cluster.servers["a"].sql("SELECT SUM(next_added_id) FROM trips_meta.shard_counter")
            == [(70,)]
        ),
        "it caught up",
    )


def test_two_promotions_in_a_row_and_back(cluster: TestCluster, engine: ClusteredEngine) -> None:
    for number, (node, epoch) in enumerate([("b", 1), ("c", 2), ("a", 3)]):
        put_until_stored(engine, cells(range(number * 10, number * 10 + 10)))
        role, _ = cluster_role(cluster.admin)
        done = promote(cluster.admin, node)
        assert (done.master, done.epoch) == (node, epoch)
        follow_again(cluster.admin, role.master)
    put_until_stored(engine, cells(range(30, 40)))
    eventually(lambda: shown(engine) == 40, "all shown")


def test_a_minion_that_does_not_answer_is_given_up_only_by_name(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    engine.put(cells(range(10)))
    cluster.servers["c"].kill()
    with pytest.raises(ProtectData, match="c does not answer"):
        promote(cluster.admin)
    assert promote(cluster.admin, give_up=["c"]).master == "b"


@pytest.fixture
def supervisors(cluster: TestCluster) -> Iterator[list[Promotion]]:
    """Two supervisors at work, as on two hosts; the processes that they promote."""
    stop, promoted = threading.Event(), list[Promotion]()
    threads = [
        threading.Thread(
            target=FailoverSupervisor(cluster.admin, promoted.append).run, args=(stop,)
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    yield promoted
    stop.set()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_supervisor_promotes_once_and_brings_the_old_master_back(
    cluster: TestCluster, engine: ClusteredEngine, supervisors: list[Promotion], how: str
) -> None:
    before = cells(range(50))
    engine.put(before)
    eventually(lambda: shown(engine) == 50, "replicated")
    read = log(engine)
    old = cluster.servers["a"]
    old.kill() if how == "kill" else old.pause()
    put_until_stored(engine, cells(range(50, 60)))
    assert [(each.old_master, each.epoch) for each in supervisors] == [("a", 1)]
    old.start() if how == "kill" else old.resume()
    eventually(
        lambda: checksums(cluster, "a") == checksums(cluster, supervisors[0].master),
        "the old master follows",
    )
    eventually(lambda: shown(engine) == 60, "all shown")
    now = log(engine)
    assert all(now[shard][: len(seen)] == seen for shard, seen in read.items()), (
        "what was read has not changed (I3)"
    )
    assert len(supervisors) == 1


def test_no_minion_is_promoted_while_one_still_hears_the_master(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    # The supervisor's own way to the master is cut; the minions' is not.
    cut_off = ClusterServers(
        "c1",
        DATASTORE,
        SHARDS,
        {**cluster.admin.servers, "a": MySqlServer("mysql://root@127.0.0.1:1")},
    )
    supervisor = FailoverSupervisor(cut_off)
    deadline_s = time.monotonic() + 3
    while time.monotonic() < deadline_s:
        assert supervisor.look() is None
        time.sleep(0.1)
    engine.put(cells(range(5)))


def test_a_new_master_is_not_counted_as_gone_for_its_predecessors_absence(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    put_until_stored(engine, cells(range(10)))
    now_s = 1_000.0
    late = FailoverSupervisor(cluster.admin, clock_s=lambda: now_s)
    cluster.servers["a"].kill()
    assert late.look() is None, "gone for less than it takes"
    set_failpoint("promote.after_repoint", "raise")
    with pytest.raises(FailpointReached):
        promote(cluster.admin)
    clear_failpoints()
    role, _ = cluster_role(cluster.admin)
    now_s += 2 * DETECT_S
    assert is_read_only(cluster.admin.server(role.master)), "not opened yet"
    assert late.look() is None
    open_for_writes(cluster.admin.server(role.master))  # anybody who had chosen it continues
    with pytest.raises(StaleWriter, match="in epoch 1 by now"):
        promote(cluster.admin, gone_in=1)
    assert late.look() is None
    assert cluster_role(cluster.admin)[0] == role
    late.close()
    put_until_stored(engine, cells(range(10, 20)))


def test_a_minion_that_a_promotion_has_stopped_is_not_started_again(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    put_until_stored(engine, cells(range(10)))
    now_s = 1_000.0
    supervisor = FailoverSupervisor(cluster.admin, clock_s=lambda: now_s)
    cluster.servers["b"].sql("STOP SLAVE IO_THREAD")
    with promotion_lock(list(cluster.admin.servers.values()), "c1"):
        supervisor.look()
        assert (status := minion_status(cluster.admin.server("b")))
        assert status.is_stopped
        with pytest.raises(StorageUnavailable, match="under way"):
            clone(cluster.admin, "c")
        assert heard_epoch(cluster.admin, "c") == 0, "nothing was touched"
    now_s += 2 * AGAIN_S
    supervisor.look()
    eventually(
        lambda: (
            (told := minion_status(cluster.admin.server("b"))) is not None and not told.is_stopped
        ),
        "started again",
    )
    supervisor.close()


def test_a_promotion_that_is_killed_anywhere_is_finished_by_the_next(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    epoch = 0
    for number, name in enumerate(
        [
            "promote.after_fence",
            "promote.after_collect",
            "promote.after_promise",
            "promote.after_raise",
            "promote.after_repoint",
            "promote.after_open",
        ]
    ):
        put_until_stored(engine, cells(range(number * 10, number * 10 + 10)))
        set_failpoint(name, "raise")
        with pytest.raises(FailpointReached):
            promote(cluster.admin)
        clear_failpoints()
        done = promote(cluster.admin)
        assert done.epoch >= epoch
        epoch = done.epoch
        role, _ = cluster_role(cluster.admin)
        for node in cluster.servers:
            if node != role.master:
                follow_again(cluster.admin, node)
        eventually(
            lambda role=role: all(  # type: ignore[misc]
                checksums(cluster, node) == checksums(cluster, role.master) for node in "abc"
            ),
            f"copies again after {name}",
        )
    put_until_stored(engine, cells(range(100, 110)))
    eventually(lambda: shown(engine) == 70, "all shown")
    assert all(engine.get([cell.triple for cell in cells(range(60))]))
