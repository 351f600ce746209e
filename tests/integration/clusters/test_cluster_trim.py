"""Trims on real MariaDB: every node's log begins where the master's does; a promotion keeps that;
nothing goes that a node lacks or a buffer holds."""

from __future__ import annotations

import threading
from contextlib import closing, suppress

import pytest

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.operating.rejoin import follow_again, is_prefix
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.engines.contract.values import WriteTerms
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.errors import (
    InvalidLocation,
    StaleWriter,
    StorageUnavailable,
    Trimmed,
    Unavailable,
)
from cellfeed.store.failpoints import unwatch_failpoint, watch_failpoint
from tests.support.cluster_steps import (
    checksums,
    eventually,
    open_engine,
    put_until_stored,
    two_buffering_clusters,
)
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import (
    DATASTORE,
    SHARDS,
    TestCluster,
    cells_of_shard,
)
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]

SHARD = 2


def cells(first: int, count: int, shard: int = SHARD) -> list[NewCell]:
    return cells_of_shard(shard, first, count)


def on_every_node(engine: ClusteredEngine, ends: int) -> None:
    eventually(
        lambda: engine.trim_limits([SHARD])[SHARD] >= ends, f"every node has the cells below {ends}"
    )


def trim(engine: ClusteredEngine, below: int) -> None:
    while engine.trim(SHARD, below, 7) < below:
        pass


def ids(engine: ClusteredEngine, location: int) -> list[int]:
    return [found.added_id for found in engine.scan(SHARD, location, 1_000)]


def test_after_a_trim_and_a_promotion_the_new_masters_log_begins_where_the_old_ones_did(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    written = cells(1, 40)
    engine.put(written)
    on_every_node(engine, 40)
    trim(engine, 25)
    assert engine.heads()[SHARD].log_start == 25
    cluster.servers["a"].kill()
    done = promote(cluster.admin)
    assert done.master != "a"
    put_until_stored(engine, cells(2, 10))
    with closing(open_engine(cluster)) as another:
        for reader in (engine, another):
            wait_until(
                lambda reader=reader: reader.heads()[SHARD].watermark == 50,  # type: ignore[misc]
                "the new cells are shown",
            )
            assert reader.heads()[SHARD].log_start == 25
            assert ids(reader, 25) == list(range(25, 50))
            with pytest.raises(Trimmed, match="begins at 25"):
                reader.scan(SHARD, 24, 10)
    # The same row again, on the new master: a new cell, for the old one is gone there as well.
    [again] = engine.put(written[:1])
    assert again.added_id == 50
    cluster.servers["a"].start()
    role, _ = cluster_role(cluster.admin)
    assert is_prefix(cluster.admin, "a", role)
    follow_again(cluster.admin, "a")
    wait_until(
        lambda: checksums(cluster, "a") == checksums(cluster, done.master),
        "the old master has the same log, counters and all",
    )
    on_every_node(engine, 51)
    trim(engine, 51)
    for server in cluster.servers.values():
        wait_until(
            lambda server=server: server.sql("SELECT COUNT(*) FROM trips_0002.cell") == [(0,)],  # type: ignore[misc]
            "every node has trimmed",
        )
        assert server.sql(
            f"SELECT log_start, next_added_id FROM trips_meta.shard_counter WHERE shard = {SHARD}"
        ) == [(51, 51)]


def test_a_master_that_dies_in_a_trim_leaves_a_log_that_is_whole_from_its_start_on(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    engine.put(cells(1, 40))
    on_every_node(engine, 40)
    trim(engine, 14)
    died = threading.Event()

    def kill() -> None:
        cluster.servers["a"].kill()
        died.set()

    watch_failpoint("mysql.trim.before_commit", kill)
    try:
        with pytest.raises(Unavailable):
            engine.trim(SHARD, 30)
    finally:
        unwatch_failpoint("mysql.trim.before_commit")
    assert died.is_set()
    promote(cluster.admin)
    put_until_stored(engine, cells(2, 5))
    wait_until(lambda: engine.heads()[SHARD].watermark == 45, "the new cells are shown")
    assert engine.heads()[SHARD].log_start == 14
    assert ids(engine, 14) == list(range(14, 45))
    cluster.servers["a"].start()
    with suppress(Unavailable):
        follow_again(cluster.admin, "a")
    on_every_node(engine, 45)
    trim(engine, 30)
    assert ids(engine, 30) == list(range(30, 45))


def test_a_trim_waits_for_cells_that_a_minion_has_not_got(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    engine.put(cells(1, 10))
    on_every_node(engine, 10)
    cluster.servers["c"].sql("STOP SLAVE SQL_THREAD")
    engine.put(cells(2, 10))
    wait_until(
        lambda: engine.heads()[SHARD].watermark == 20, "one minion has them, so they are shown"
    )
    assert engine.trim_limits([SHARD]) == {SHARD: 10}
    with pytest.raises(InvalidLocation, match="only cells below 10"):
        engine.trim(SHARD, 11)
    assert engine.trim(SHARD, 10) == 10
    assert ids(engine, 10) == list(range(10, 20))
    cluster.servers["c"].sql("START SLAVE SQL_THREAD")
    on_every_node(engine, 20)
    cluster.servers["c"].kill()
    with (
        closing(open_engine(cluster)) as another,
        pytest.raises(StorageUnavailable, match="node c has not reported its counters"),
    ):
        another.trim(SHARD, 20)
    trim(engine, 20)  # this one has heard from it
    cluster.servers["c"].start()
    wait_until(
        lambda: cluster.servers["c"].sql("SELECT COUNT(*) FROM trips_0002.cell") == [(0,)],
        "the minion trims when it is back",
    )


def test_a_trim_of_another_leader_epoch_or_on_an_old_master_is_refused(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    engine.put(cells(1, 10))
    on_every_node(engine, 10)
    with closing(MySqlEngine(MySqlServer(cluster.servers["a"].url), DATASTORE, SHARDS)) as node:
        with pytest.raises(StaleWriter, match=r"leader epoch 0 .*the write came with 7"):
            node.trim(SHARD, 5, terms=WriteTerms(7))
        promote(cluster.admin)
        with pytest.raises(StorageUnavailable, match="read-only"):
            node.trim(SHARD, 5)
        assert node.heads()[SHARD].log_start == 0


def test_cells_that_another_cluster_still_buffers_are_not_trimmed(
    servers: list[MariaDB],
) -> None:
    """The drain would find the cell gone, and store it a second time."""
    with two_buffering_clusters(servers) as engine:
        shard = next(shard for shard in range(SHARDS) if engine.commit_group(shard) == "c1")
        written = cells(1, 5, shard)
        engine.put(written)
        assert [len(counts) for counts in engine.drain.counts().values()] == [0, 1]
        assert engine.trim_limits([shard]) == {shard: 0}
        with pytest.raises(InvalidLocation, match="only cells below 0"):
            engine.trim(shard, 5)
        assert engine.drain.drain_once(0) == 5
        assert engine.trim_limits([shard]) == {shard: 5}
        # The masters' clocks may differ: cells of the minute before a buffered one stay too.
        engine.put(cells(6, 5, shard))
        assert engine.trim_limits([shard]) == {shard: 0}
        assert engine.drain.drain_once(0) == 5
        assert engine.trim(shard, 5) == 5
        servers[1].kill()
        with pytest.raises(StorageUnavailable, match="cluster c2 cannot report its buffer for c1"):
            engine.trim_limits([shard])
