"""Minions that join within an epoch: every process learns of them, and semi-synchronous replication
begins with the first one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import even_map
from cellfeed.store.clusters.operating.clone import clone
from cellfeed.store.clusters.operating.create import init_cluster
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.operating.rejoin import follow_again
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.clusters.serving.shown_heads import Watermark
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.errors import NoMinion, ProtectData
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from tests.support.cli_instance import cellfeed
from tests.support.cluster_steps import (
    cells,
    checksums,
    eventually,
    open_engine,
    put_until_stored,
    shown,
    without_replication,
)
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster, configured, make_cluster

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]


def made_of(servers: list[MariaDB], *, semi_sync: bool) -> TestCluster:
    """All servers are configured; only the first one is the cluster so far."""
    lone = make_cluster("c1", servers[:1], semi_sync=semi_sync)
    lone.admin.close()
    named = dict(zip("abc", servers, strict=True))
    return TestCluster("c1", named, in_mode(named, semi_sync))


def in_mode(named: dict[str, MariaDB], semi_sync: bool) -> ClusterServers:
    return ClusterServers(
        "c1",
        DATASTORE,
        SHARDS,
        {node: MySqlServer(server.url) for node, server in named.items()},
        semi_sync=semi_sync,
    )


@pytest.fixture
def asynchronous(servers: list[MariaDB]) -> Iterator[TestCluster]:
    made = make_cluster("c1", servers, semi_sync=False)
    yield made
    made.admin.close()
    made.bare()


@pytest.fixture(params=[True, False], ids=["semi-synchronous", "asynchronous"])
def lone(servers: list[MariaDB], request: pytest.FixtureRequest) -> Iterator[TestCluster]:
    """A cluster of one node, which the other two may join."""
    made = made_of(servers, semi_sync=request.param)
    yield made
    made.admin.close()
    made.bare()


def known(engine: ClusteredEngine) -> tuple[int, int, int]:
    """Sums of the watermarks, of the ends of a minion's logs, and of the ids that may be
    trimmed."""
    cluster = engine.clusters["c1"]
    return shown(engine), sum(cluster.replicated().values()), sum(cluster.trim_limits().values())


def role_of(cluster: TestCluster) -> Role:
    return cluster_role(cluster.admin)[0]


class PutBeside:
    """A put in a thread: done, or waiting."""

    def __init__(self, engine: ClusteredEngine, wanted: list[NewCell]) -> None:
        self.outcomes: set[Outcome] = set()
        self._thread = threading.Thread(target=self._put, args=(engine, wanted))
        self._thread.start()

    def _put(self, engine: ClusteredEngine, wanted: list[NewCell]) -> None:
        self.outcomes = {result.outcome for result in engine.put(wanted)}

    def is_done(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


def test_a_time_is_located_among_the_cells_that_are_shown(asynchronous: TestCluster) -> None:
    """The master has newer ones, which a promotion may take back: nobody begins behind them."""
    with closing(open_engine(asynchronous)) as engine:
        put_until_stored(engine, cells(range(3)))
        eventually(lambda: shown(engine) == 3, "replicated")
        without_replication(asynchronous, "b", "c")
        put_until_stored(engine, cells(range(3, 8)))
        heads = engine.heads()
        assert sum(head.watermark for head in heads.values()) == 3
        later_us = engine.state.now_us() + 60_000_000
        assert {shard: engine.locate(shard, later_us) for shard in heads} == {
            shard: head.watermark for shard, head in heads.items()
        }


def test_an_old_process_learns_of_minions_that_join_within_an_epoch(
    asynchronous: TestCluster,
) -> None:
    with closing(open_engine(asynchronous)) as old:
        put_until_stored(old, cells(range(3)))
        promote(asynchronous.admin, "b", give_up=["c"])
        put_until_stored(old, cells(range(3, 4)))
        assert old.clusters["c1"].role().minions == []
        clone(asynchronous.admin, "c")
        follow_again(asynchronous.admin, "a")
        eventually(
            lambda: (
                checksums(asynchronous, "a")
                == checksums(asynchronous, "c")
                == checksums(asynchronous, "b")
            ),
            "both follow",
        )
        for name in "ac":
            asynchronous.servers[name].sql("STOP SLAVE IO_THREAD")
        eventually(
            lambda: set(old.clusters["c1"].role().minions) == {"a", "c"},
            "the old process has heard",
            5,
        )
        put_until_stored(old, lost := cells(range(4, 9)))
        with closing(open_engine(asynchronous)) as new:
            assert known(new) == (4, 4, 4)
            assert known(old) == (4, 4, 4)
            asynchronous.servers["b"].kill()
            promote(asynchronous.admin)
            put_until_stored(new, cells(range(100, 105)))
            eventually(lambda: shown(old) == shown(new) == 9, "shown by both")
            for shard in range(SHARDS):
                assert [cell.row_key for cell in old.scan(shard, 0, 100)] == [
                    cell.row_key for cell in new.scan(shard, 0, 100)
                ]
            assert old.get([cell.triple for cell in lost]) == [None] * 5


def test_cells_that_a_lone_master_showed_stay_after_any_promotion(lone: TestCluster) -> None:
    """The step from the master's word to that of its first minion: the watermark does not fall
    (I9), and the minion is none before it has every cell that was shown."""
    with closing(open_engine(lone)) as old:
        put_until_stored(old, cells(range(3)))
        for name in "cb":
            set_failpoint("rejoin.after_meta", "raise")
            with pytest.raises(FailpointReached):
                clone(lone.admin, name)
            clear_failpoints()
        put_until_stored(old, cells(range(3, 5)))
        assert shown(old) == 5, "by the master's word, and the copies have three of them"
        set_failpoint("rejoin.after_record", "raise")
        with pytest.raises(FailpointReached):
            follow_again(lone.admin, "b")
        clear_failpoints()
        eventually(lambda: old.clusters["c1"].role().minions == ["b"], "recorded, and heard of", 5)
        assert shown(old) == 5
        lone.servers["a"].kill()
        with closing(open_engine(lone)) as new:
            assert shown(new) == 0, "b does not count: it has not heard that it is a minion"
        with pytest.raises(ProtectData, match="b, c has not caught up with a since it came"):
            promote(lone.admin)
        assert shown(old) == 5
        lone.servers["a"].start()
        follow_again(lone.admin, "b")
        eventually(
            lambda: shown(old) == 5 and sum(old.clusters["c1"].replicated().values()) == 5,
            "b has all of it",
        )
        put_until_stored(old, cells(range(5, 8)))
        eventually(lambda: shown(old) == 8, "shown by the minion's word")


def test_the_masters_word_ends_with_its_first_minion(lone: TestCluster) -> None:
    with (
        closing(open_engine(lone)) as old,
        closing(open_engine(lone, Watermark.COMMITTED)) as committed,
    ):
        put_until_stored(old, cells(range(4)))
        clone(lone.admin, "b")
        eventually(
            lambda: (
                old.clusters["c1"].role().minions == ["b"]
                and sum(old.clusters["c1"].replicated().values()) == 4
            ),
            "b has what was there",
        )
        lone.servers["b"].sql("STOP SLAVE SQL_THREAD")
        put_until_stored(old, cells(range(4, 6)))
        assert shown(committed) == 6
        for _ in range(20):
            assert (shown(old), sum(old.clusters["c1"].replicated().values())) == (4, 4)
        lone.servers["b"].sql("START SLAVE SQL_THREAD")
        eventually(lambda: shown(old) == 6, "the minion has it")


def test_semi_synchronous_replication_begins_with_the_first_minion_in_every_process(
    lone: TestCluster,
) -> None:
    with closing(open_engine(lone)) as old:
        put_until_stored(old, cells(range(3)))
        assert role_of(lone).semi_sync is False
        clone(lone.admin, "b")
        wanted = lone.admin.semi_sync
        assert (role_of(lone).semi_sync, role_of(lone).minions, role_of(lone).epoch) == (
            wanted,
            ["b"],
            0,
        )
        eventually(
            lambda: old.clusters["c1"].role().semi_sync == wanted, "the old process has heard", 5
        )
        put_until_stored(old, cells(range(3, 5)))
        # A master that was restarted has forgotten its mode; the terms of a put say it.
        lone.servers["a"].sql("SET GLOBAL rpl_semi_sync_master_enabled = 0")
        lone.servers["b"].sql("STOP SLAVE IO_THREAD")
        alone = PutBeside(old, cells(range(5, 6)))
        assert alone.is_done(1.5) != wanted, (
            "a put waits for the only minion where that is asked for, and nowhere else"
        )
        lone.servers["b"].sql("START SLAVE IO_THREAD")
        assert alone.is_done(30)
        assert alone.outcomes == {Outcome.STORED}
        [standing] = old.status()
        assert standing.semi_sync == wanted


def test_a_cluster_that_gave_up_its_last_minion_takes_no_writes_until_one_is_back(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    put_until_stored(engine, cells(range(3)))
    promote(cluster.admin, "b", give_up=["c"])
    assert (role_of(cluster).minions, role_of(cluster).semi_sync) == ([], True)
    eventually(lambda: engine.clusters["c1"].role().epoch == 1, "the process has heard")
    began_s = time.monotonic()
    for _ in range(5):
        with pytest.raises(NoMinion, match="b has no minion left") as refused:
            engine.put(cells(range(3, 4)))
        assert (refused.value.definite, refused.value.retriable) == (True, True)
    assert time.monotonic() - began_s < 5, "refused at once"
    assert sum(len(engine.scan(shard, 0, 10)) for shard in range(SHARDS)) == 3, (
        "its node is well, and is read"
    )
    assert not engine.clusters["c1"].nodes["b"].breaker.is_open
    assert "no minion left" in (engine.status()[0].error or "")
    follow_again(cluster.admin, "a")
    put_until_stored(engine, cells(range(3, 5)))
    eventually(lambda: shown(engine) == 5, "shown again")


def test_a_cluster_without_its_last_minion_continues_when_the_configuration_permits_one_node(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    put_until_stored(engine, cells(range(3)))
    promote(cluster.admin, "b", give_up=["c"])
    with closing(in_mode(cluster.servers, semi_sync=False)) as asynchronous:
        done = init_cluster(asynchronous, even_map(DATASTORE, SHARDS, ["c1"]))
    assert (done.was_there, done.semi_sync, role_of(cluster).epoch) == (True, False, 2)
    put_until_stored(engine, cells(range(3, 6)))
    follow_again(cluster.admin, "a")
    assert role_of(cluster).semi_sync, "the node that takes the first minion in asks for it"
    put_until_stored(engine, cells(range(6, 8)))
    eventually(lambda: shown(engine) == 8, "all shown")


@pytest.mark.parametrize("killed", [None, "mode.after_fence", "mode.after_raise"])
def test_the_mode_of_replication_becomes_the_configurations_in_every_process(
    cluster: TestCluster, engine: ClusteredEngine, killed: str | None
) -> None:
    put_until_stored(engine, cells(range(3)))
    for number, semi_sync in enumerate([False, True], 1):
        with closing(in_mode(cluster.servers, semi_sync)) as admin:
            if killed:
                set_failpoint(killed, "raise")
                with pytest.raises(FailpointReached):
                    init_cluster(admin, even_map(DATASTORE, SHARDS, ["c1"]))
                clear_failpoints()
                assert promote(cluster.admin).master == "a", "finished, not switched"
            assert init_cluster(admin, even_map(DATASTORE, SHARDS, ["c1"])).semi_sync == semi_sync
            role = role_of(cluster)
            assert (role.master, role.semi_sync, role.minions) == ("a", semi_sync, ["b", "c"])
            init_cluster(admin, even_map(DATASTORE, SHARDS, ["c1"]))
            assert role_of(cluster).epoch == role.epoch == number, "again changes nothing"
        put_until_stored(engine, cells(range(10 * number, 10 * number + 3)))
        eventually(
            lambda semi_sync=semi_sync: engine.clusters["c1"].role().semi_sync == semi_sync,  # type: ignore[misc]
            "heard",
        )
        for name in "bc":
            cluster.servers[name].sql("STOP SLAVE IO_THREAD")
        alone = PutBeside(engine, cells(range(10 * number + 3, 10 * number + 4)))
        assert alone.is_done(1.5) != semi_sync
        for name in "bc":
            cluster.servers[name].sql("START SLAVE IO_THREAD")
        assert alone.is_done(30)
        assert alone.outcomes == {Outcome.STORED}
    eventually(lambda: shown(engine) == 11, "all shown")


def test_the_status_shows_the_present_and_the_configured_replication_mode(
    cluster: TestCluster, engine: ClusteredEngine, tmp_path: Path
) -> None:
    put_until_stored(engine, cells(range(3)))
    config = configured(cluster, tmp_path, semi_sync=False)
    told = cellfeed("cluster", "status", "--config", str(config)).stdout
    assert "master a, semi-synchronous" in told
    assert "the configuration says `semi_sync: false`: cellfeed cluster init" in told
    done = cellfeed("cluster", "init", "--config", str(config))
    assert (done.returncode, "b and c follow asynchronously (as before)" in done.stdout) == (
        0,
        True,
    ), done.stdout + done.stderr
    told = cellfeed("cluster", "status", "--config", str(config)).stdout
    assert "master a, asynchronous" in told
    assert "the configuration says" not in told
