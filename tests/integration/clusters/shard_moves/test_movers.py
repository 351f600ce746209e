"""Movers that die, are paused or meet a promotion: the move is resumed or taken back."""

from __future__ import annotations

import threading
import time
from contextlib import closing, suppress

import pytest

from cellfeed.store.clusters.moves import mover, waiting
from cellfeed.store.clusters.moves.underway import owners, underway
from cellfeed.store.clusters.operating.clone import clone
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.operating.rejoin import follow_again
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidRequest, ProtectData, ShardMoving, StorageUnavailable
from cellfeed.store.failpoints import (
    FailpointReached,
    clear_failpoints,
    passes,
    set_failpoint,
    unwatch_failpoint,
    watch_failpoint,
)
from tests.support.mariadb_cluster import BUSY_FENCE_MAX_S, TestCluster
from tests.support.move_steps import (
    POINTS,
    SHARD,
    admins,
    cells,
    check,
    move,
    open_engine,
    serving,
    tailing,
    writing,
)
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]


def test_a_mover_that_dies_anywhere_under_writes_is_resumed_or_taken_back_and_nothing_is_lost(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    assert len(POINTS) == 11
    datastore = Datastore(engine)
    try:
        with tailing(clusters) as tailer, writing(datastore) as writer:
            for number, point in enumerate(POINTS):
                [source] = serving(clusters)
                target = "c2" if source == "c1" else "c1"
                set_failpoint(point, "raise")
                with pytest.raises(FailpointReached):
                    move(clusters, engine, target)
                assert passes(point) == 1
                clear_failpoints()
                assert len(serving(clusters)) <= 1
                [found] = [each for each in underway(admins(clusters)) if each.shard == SHARD]
                if found.stage in ("copying", "fenced") and number % 2:
                    assert mover.roll_back(admins(clusters), SHARD).source == source
                    assert serving(clusters) == [source]
                else:
                    move(clusters, engine, target)
                    assert serving(clusters) == [target]
                writer.goes_on()
            writer.stop()
            check(clusters, writer, tailer)
    finally:
        clear_failpoints()
        datastore.close()


def test_a_promotion_in_the_middle_of_a_move_changes_nothing_on_its_source_or_its_target(
    clusters: dict[str, TestCluster],
) -> None:
    # Only c1 has a minion to promote: it is the source of the moves to c2, and the target of those
    # back.
    for to, point in (
        ("c2", "move.inside_copy"),
        ("c1", "move.before_switch"),
        ("c2", "move.after_fence"),
        ("c1", "move.after_switch"),
    ):
        with (
            closing(open_engine(clusters)) as engine,
            Datastore(open_engine(clusters)) as datastore,
            tailing(clusters) as tailer,
            writing(datastore) as writer,
        ):
            promoted: list[str] = []

            def once(promoted: list[str] = promoted) -> None:
                if not promoted:
                    promoted.append("under way")
                    done = promote(clusters["c1"].admin)
                    promoted[0] = done.master
                    wait_until(
                        lambda: follows_again(clusters["c1"], done.old_master),
                        "the old master is a minion",
                    )

            watch_failpoint(point, once)
            try:
                move(clusters, engine, to)
            finally:
                unwatch_failpoint(point)
            assert promoted[0] in ("a", "b")
            assert owners(admins(clusters))[SHARD] == to
            writer.goes_on()
            writer.stop()
            check(clusters, writer, tailer)


def test_a_paused_mover_blocks_another_and_a_mover_that_was_cut_off_can_do_nothing_more(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    engine.put(cells(1, 50))
    reached, go_on, ended = threading.Event(), threading.Event(), list[BaseException]()

    def pause() -> None:
        reached.set()
        go_on.wait(120)

    def run() -> None:
        try:
            mover.move_shard(admins(clusters), SHARD, "c2", engine.dictionaries.complete, again_s=0)
        except BaseException as error:
            ended.append(error)

    watch_failpoint("move.before_switch", pause)
    paused = threading.Thread(target=run)
    paused.start()
    try:
        assert reached.wait(60)
        with pytest.raises(StorageUnavailable, match="is being moved already"):
            mover.roll_back(admins(clusters), SHARD, again_s=0)
        with pytest.raises(ShardMoving):
            engine.clusters["c1"].put(cells(2, 1))
        for each in clusters.values():
            for thread, user in each.servers["a"].sql(
                "SELECT ID, USER FROM information_schema.PROCESSLIST WHERE ID <> CONNECTION_ID()"
            ):
                if user != "system user":
                    with suppress(Exception):
                        each.servers["a"].sql(f"KILL {thread}")
        wait_until(lambda: rolled_back(clusters), "the move is taken back")
    finally:
        go_on.set()
        paused.join(60)
        unwatch_failpoint("move.before_switch")
    assert ended
    assert serving(clusters) == ["c1"]
    wait_until(lambda: stored(engine, 2), "puts continue")
    assert engine.get([cells(1, 1)[0].triple])[0] is not None


def follows_again(cluster: TestCluster, node: str) -> bool:
    """Whether it could be written down that the node is a minion again, which on a busy machine
    takes more than one attempt. A commit under way when it was fenced is nobody's: the writer puts
    its cells again."""
    with suppress(StorageUnavailable):
        try:
            follow_again(cluster.admin, node)
        except ProtectData:
            clone(cluster.admin, node)
        return True
    return False


def rolled_back(clusters: dict[str, TestCluster]) -> bool:
    with suppress(StorageUnavailable):
        mover.roll_back(admins(clusters), SHARD, again_s=0)
        return True
    return False


def stored(engine: ClusteredEngine, first: int) -> bool:
    with suppress(StorageUnavailable):
        return all(result.acknowledged for result in engine.put(cells(first, 1)))
    return False


def test_a_shard_that_cannot_be_switched_in_time_is_given_back_and_continues(
    clusters: dict[str, TestCluster], engine: ClusteredEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Datastore(open_engine(clusters)) as datastore, writing(datastore) as writer:
        watch_failpoint("move.after_hide", lambda: time.sleep(0.55))
        monkeypatch.setattr(waiting, "FENCE_MAX_S", 0.5)
        try:
            with pytest.raises(InvalidRequest, match="could not be switched"):
                move(clusters, engine, "c2")
        finally:
            unwatch_failpoint("move.after_hide")
            monkeypatch.setattr(waiting, "FENCE_MAX_S", BUSY_FENCE_MAX_S)
        assert serving(clusters) == ["c1"]
        writer.goes_on()
        move(clusters, engine, "c2")
        writer.goes_on()
