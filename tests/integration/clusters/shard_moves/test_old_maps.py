"""Processes whose map of shards is older than a move."""

from __future__ import annotations

from contextlib import closing

import pytest

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.clusters.model.shard_map import read_map
from cellfeed.store.clusters.moves import mover
from cellfeed.store.clusters.moves.underway import underway
from cellfeed.store.clusters.serving import placement
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.engines.mysql.state import MySqlState
from cellfeed.store.errors import (
    InvalidRequest,
    NotFound,
    ProtectData,
    ShardMoving,
    StorageUnavailable,
)
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster
from tests.support.move_steps import SHARD, admins, cells, log, move, open_engine, shown
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]


def test_a_process_with_a_map_from_before_two_moves_does_not_take_half_a_copy_for_the_shard(
    clusters: dict[str, TestCluster], engine: ClusteredEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "MOVE_WAIT_S", 0.1)
    written = cells(1, 30)
    engine.put(written)
    shown(engine, 30)
    keys = [(written[5].row_key, "BASE")]
    with closing(open_engine(clusters)) as asleep:
        move(clusters, engine, "c2")
        for point in ("move.after_begin", "move.after_rest", "move.before_switch"):
            set_failpoint(point, "raise")
            with pytest.raises(FailpointReached):
                move(clusters, engine, "c1")
            clear_failpoints()
            # It knows of neither move, and asks the cluster that had the shard before both of them.
            answers = (
                asleep.clusters["c1"].read(
                    lambda each: (each.get([written[5].triple]), each.latest(keys))
                )[0]
                if holds(asleep, written[5])
                else None
            )
            assert answers is None or None not in (*answers[0], *answers[1])
            mover.roll_back(admins(clusters), SHARD)
        move(clusters, engine, "c1")
        assert asleep.get([written[5].triple])[0] is not None


def holds(engine: ClusteredEngine, cell: NewCell) -> bool:
    """Whether the first cluster answers for the shard of the cell at all."""
    try:
        engine.clusters["c1"].read(lambda each: each.get([cell.triple]))
    except (ShardMoving, StorageUnavailable):
        return False
    return True


def test_cells_buffered_for_a_cluster_go_where_their_shard_is_now(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    with closing(open_engine(clusters, copies=1)) as buffering:
        written = cells(1, 20)
        engine.put(written[:10])
        buffering._puts._buffered._copy("c1", written)  # type: ignore[union-attr]
        away = [
            PutResult(Outcome.FAILED, SHARD, error=StorageUnavailable("c1 is away"))
            for _ in written
        ]
        buffering._puts._buffered._accept("c1", ["c2"], written, away)  # type: ignore[union-attr]
        assert {result.outcome for result in away} == {Outcome.BUFFERED}
        move(clusters, engine, "c2")
        with pytest.raises(Exception, match="only cells below 0"):
            buffering.trim(SHARD, 5)
        assert buffering.drain.drain_once(0) == 20
        assert buffering.drain.counts() == {"c1": [], "c2": []}
        shown(buffering, 20)
        assert [each[0] for each in log(buffering)] == list(range(20))
        assert {result.outcome for result in buffering.put(written)} == {Outcome.EXISTS}


def test_a_process_that_does_not_know_the_new_cluster_refuses_and_serves_the_other_shards(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    everything = {name: each.openers() for name, each in clusters.items()}
    with closing(
        ClusteredEngine(DATASTORE, SHARDS, {name: everything[name] for name in ("c1", "c2")})
    ) as ordinary:
        ordinary.put(cells(1, 5))
        ordinary.placement._clusters = {
            "c1": ordinary.clusters["c1"]
        }  # as one that was started before c2 was made
        move(clusters, engine, "c2")
        with pytest.raises(
            StorageUnavailable, match="moved to cluster 'c2', which the configuration"
        ):
            ordinary.put(cells(2, 1))
        with pytest.raises(StorageUnavailable, match="start the process again"):
            ordinary.scan(SHARD, 0, 10)
        assert ordinary.put(cells(3, 1, 0))[0].outcome is Outcome.STORED


def test_the_sources_copy_is_dropped_only_when_every_cluster_knows(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    engine.put(cells(1, 30))
    with pytest.raises(NotFound, match="keeps anything"):
        mover.clean(admins(clusters), SHARD, engine.dictionaries.complete)
    set_failpoint("move.between_maps", "raise")
    with pytest.raises(FailpointReached):
        move(clusters, engine, "c2")
    clear_failpoints()
    [found] = underway(admins(clusters))
    assert (found.stage, found.source, found.target) == ("switched", "c1", "c2")
    with pytest.raises(InvalidRequest, match="is on c2 already"):
        mover.roll_back(admins(clusters), SHARD)
    with pytest.raises(ProtectData, match="does not know yet"):
        mover.clean(admins(clusters), SHARD, engine.dictionaries.complete)
    assert move(clusters, engine, "c2").was_there
    assert [each.stage for each in underway(admins(clusters))] == ["kept"]
    set_failpoint("move.inside_clean", "raise")
    with pytest.raises(FailpointReached):
        mover.clean(admins(clusters), SHARD, engine.dictionaries.complete)
    clear_failpoints()
    assert mover.clean(admins(clusters), SHARD, engine.dictionaries.complete) == "c1"
    assert underway(admins(clusters)) == []
    for server in clusters["c1"].servers.values():
        wait_until(
            lambda server=server: not server.sql("SHOW DATABASES LIKE 'trips_0001'"),  # type: ignore[misc]
            "nothing is kept",
        )
    assert len(log(engine)) == 30
    states = [MySqlState(each.admin.server("a"), each.admin.meta) for each in clusters.values()]
    assert {told.by_shard()[SHARD] for state in states if (told := read_map(state))} == {"c2"}
