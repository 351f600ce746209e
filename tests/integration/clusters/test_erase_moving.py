"""Erasures of rows whose shard is being moved, on real MariaDB servers: refused while the mover is
alive, done when it is dead, and nobody keeps a body."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from cellfeed.store.cells.body_codec import is_erased
from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.clusters.moves import heal, mover
from cellfeed.store.clusters.moves.steps import Moved
from cellfeed.store.clusters.moves.underway import underway
from cellfeed.store.clusters.serving import placement
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.errors import OutcomeUnknown, RowErased, ShardMoving, StorageUnavailable
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, passes, set_failpoint
from tests.faults.mover_process import kill_mover_at
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster
from tests.support.move_steps import (
    SHARD,
    admins,
    cells,
    log,
    move,
    open_engine,
    paused_mover,
    serving,
    shown,
    urls,
)
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]


@pytest.fixture(autouse=True)
def _waits_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "MOVE_WAIT_S", 0.1)


@pytest.fixture
def engine(clusters: dict[str, TestCluster]) -> Iterator[ClusteredEngine]:
    with closing(open_engine(clusters)) as opened:
        yield opened


def bodies(server: MariaDB, cell: NewCell, table: str = "cell") -> list[bytes]:
    return [
        bytes(body)
        for (body,) in server.sql(
            f"SELECT body FROM trips_{SHARD:04d}.{table} WHERE row_key = X'{cell.row_key.hex()}'"
        )
    ]


def marks(cluster: TestCluster) -> list[str]:
    """By node, for which cluster a copy of the shard is made."""
    told = [
        server.sql(f"SELECT copied_to FROM trips_meta.shard_counter WHERE shard = {SHARD}")[0][0]
        for server in cluster.servers.values()
    ]
    return [each.decode() if isinstance(each, bytes) else str(each) for each in told]


def nothing_of_a_copy(cluster: TestCluster) -> bool:
    return not any(
        server.sql("SHOW DATABASES LIKE 'trips_0001'")
        or server.sql("SELECT * FROM trips_meta.shard_arriving")
        for server in cluster.servers.values()
    )


def test_an_erasure_waits_while_a_live_mover_copies_and_then_erases_at_the_target(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    before, during = written = cells(1, 40)[:2]
    engine.put(cells(1, 40))
    step = engine.erase(before.row_key)
    assert (step.cells, step.done) == (1, True)
    shown(engine, 41)
    told = engine.heads()[SHARD].erasures
    with paused_mover(clusters, engine, "move.before_fence") as (go_on, ended):
        assert marks(clusters["c1"]) == ["c2", "c2"]
        with pytest.raises(
            ShardMoving,
            match=(
                r"nothing erased: shard 1 is being moved to cluster c2; .* locked by another mover,"
                r" which is alive"
            ),
        ) as refused:
            engine.erase(during.row_key)
        assert refused.value.definite
        assert engine.get([during.triple])[0] is not None
        assert not is_erased(bodies(clusters["c2"].servers["a"], during, "moved_cell")[0])
        go_on.set()
        wait_until(lambda: bool(ended), "the mover has ended")
        assert isinstance(ended[0], Moved)
    last = engine.erase(during.row_key)
    assert (last.cells, last.kept) == (
        1,
        (
            (
                "cluster c1 keeps shards 1 as they were when they left it: cellfeed shard clean"
                " --shard 1"
            ),
        ),
    )
    assert engine.heads()[SHARD].erasures not in (0, told)
    for cell in written:
        assert all(map(is_erased, bodies(clusters["c2"].servers["a"], cell)))
        [result] = engine.put([cell])
        assert (result.outcome, isinstance(result.error, RowErased)) == (Outcome.FAILED, True)
    assert not is_erased(bodies(clusters["c1"].servers["a"], during, "moved_cell")[0])
    mover.clean(admins(clusters), SHARD, engine.dictionaries.complete)
    assert not clusters["c1"].servers["a"].sql("SHOW DATABASES LIKE 'trips_0001'")
    assert engine.erase(during.row_key)[2:] == (0, True, ())


def test_a_copy_whose_mark_was_taken_away_is_made_again(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    erased, *_ = cells(1, 40)
    engine.put(cells(1, 40))
    shown(engine, 40)
    die_at(clusters, engine, "move.before_fence")
    assert not is_erased(bodies(clusters["c2"].servers["a"], erased, "moved_cell")[0])
    clusters["c1"].servers["a"].sql("UPDATE trips_meta.shard_counter SET copied_to = ''")
    assert engine.erase(erased.row_key).cells == 1
    shown(engine, 41)
    assert move(clusters, engine, "c2").target == "c2"
    assert all(map(is_erased, bodies(clusters["c2"].servers["a"], erased)))


def die_at(clusters: dict[str, TestCluster], engine: ClusteredEngine, point: str) -> None:
    """A mover dies there."""
    set_failpoint(point, "raise")
    with pytest.raises(FailpointReached):
        move(clusters, engine, "c2")
    clear_failpoints()


def test_an_erasure_removes_the_copy_of_a_killed_mover_and_the_move_begins_again(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    written = cells(1, 40)
    engine.put(written)
    shown(engine, 40)
    for number, point in enumerate(("move.after_mark", "move.before_fence")):
        kill_mover_at(point, urls(clusters), SHARDS, SHARD, "c2")
        assert marks(clusters["c1"]) == ["c2", "c2"]
        assert bool(
            clusters["c2"].servers["a"].sql("SELECT added_id FROM trips_0001.moved_cell")
        ) == (point == "move.before_fence")
        erased = engine.erase(written[number].row_key)
        assert (erased.cells, erased.done, erased.kept) == (1, True, ())
        assert nothing_of_a_copy(clusters["c2"])
        assert underway(admins(clusters)) == []
        shown(engine, 41 + number)
    wait_until(lambda: marks(clusters["c1"]) == ["", ""], "the minion has it, too")
    [new] = engine.put(cells(2, 1))
    assert new.added_id == 42
    assert move(clusters, engine, "c2").cells == 43
    shown(engine, 43)
    assert [each[0] for each in log(engine)] == list(range(43))
    for each in written[:2]:
        assert all(map(is_erased, bodies(clusters["c2"].servers["a"], each)))
    assert all(found is not None for found in engine.get([each.triple for each in written[2:]]))


def test_an_erasure_that_dies_while_it_drops_a_copy_is_repeated_and_nothing_of_it_stays(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    points = ("move.inside_give_back", "rollback.inside_abandon", "rollback.before_unmark")
    written = cells(1, 20)
    engine.put(written)
    for cell, point in zip(written, points, strict=False):
        die_at(clusters, engine, "move.before_fence")
        set_failpoint(point, "raise")
        with pytest.raises(FailpointReached):
            engine.erase(cell.row_key)
        assert passes(point) == 1
        clear_failpoints()
        # The rest is behind the mark, and listed.
        assert marks(clusters["c1"])[0] == "c2"
        assert [(each.stage, each.source, each.target) for each in underway(admins(clusters))] == [
            ("copying", "c1", "c2")
        ]
        assert engine.get([cell.triple])[0] is not None
        assert engine.erase(cell.row_key).cells == 1
        assert nothing_of_a_copy(clusters["c2"])
        assert underway(admins(clusters)) == []
    move(clusters, engine, "c2")
    for cell in written[:3]:
        assert all(map(is_erased, bodies(clusters["c2"].servers["a"], cell)))
    assert all(found is not None for found in engine.get([each.triple for each in written[3:]]))


def test_an_erasure_cuts_off_a_mover_that_stands_still_and_the_mover_copies_again(
    clusters: dict[str, TestCluster], engine: ClusteredEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = cells(1, 20)
    engine.put(written)
    patient_s = heal.COPY_SILENT_MAX_S
    for cell, point in zip(written, ("move.inside_copy", "move.before_fence"), strict=False):
        monkeypatch.setattr(heal, "COPY_SILENT_MAX_S", patient_s)
        with paused_mover(clusters, engine, point, again_s=30) as (go_on, ended):
            with pytest.raises(ShardMoving, match="which is alive"):
                engine.erase(cell.row_key)
            assert not is_erased(bodies(clusters["c2"].servers["a"], cell, "moved_cell")[0])
            monkeypatch.setattr(heal, "COPY_SILENT_MAX_S", 0.2)
            assert engine.erase(cell.row_key).cells == 1
            assert nothing_of_a_copy(clusters["c2"])
            go_on.set()
            wait_until(lambda: bool(ended), "the mover has ended")
            assert isinstance(ended[0], Moved)
        assert serving(clusters) == ["c2"]
        assert all(map(is_erased, bodies(clusters["c2"].servers["a"], cell)))
        move(clusters, engine, "c1")
    shown(engine, 22)
    assert [each[0] for each in log(engine)] == list(range(22))
    assert all(found is not None for found in engine.get([each.triple for each in written[2:]]))


def test_a_copy_is_not_dropped_while_the_cluster_that_it_is_on_is_away_or_unknown(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    erased = cells(1, 1)[0]
    engine.put(cells(1, 20))
    die_at(clusters, engine, "move.before_fence")
    unknown = ClusteredEngine(
        DATASTORE,
        SHARDS,
        {name: each.openers() for name, each in clusters.items()},
        servers={"c1": clusters["c1"].admin},
    )
    with (
        closing(unknown),
        pytest.raises(ShardMoving, match=r"take the move back: cellfeed shard rollback --shard 1$"),
    ):
        unknown.erase(erased.row_key)
    clusters["c2"].servers["a"].kill()
    with pytest.raises(
        ShardMoving, match=r"nothing erased: .* cluster c2: no node reports a master"
    ):
        engine.erase(erased.row_key)
    assert engine.get([erased.triple])[0] is not None
    clusters["c2"].servers["a"].start()
    wait_until(lambda: is_done(engine, erased), "it is erased when the cluster is back")
    assert nothing_of_a_copy(clusters["c2"])


def is_done(engine: ClusteredEngine, cell: NewCell) -> bool:
    """Tried again, as errors that may be retried are: a process's last news of a node that is back
    is old for a moment."""
    with suppress(StorageUnavailable, OutcomeUnknown):
        return engine.erase(cell.row_key).done
    return False


def test_a_copy_for_a_removed_cluster_can_be_taken_back(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    engine.put(cells(1, 5))
    die_at(clusters, engine, "move.after_mark")
    only = {"c1": clusters["c1"].admin}
    assert [(each.stage, each.source, each.target) for each in underway(only)] == [
        ("copying", "c1", "c2")
    ]
    assert mover.roll_back(only, SHARD).target == "c2"
    assert underway(only) == []
    assert engine.erase(cells(1, 1)[0].row_key).cells == 1
