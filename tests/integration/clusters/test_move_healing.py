"""Shards that a dead, stopped or paused mover has left are served again by themselves, on real
MariaDB servers; nothing is taken back that was switched."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from pymysql.connections import Connection

from cellfeed.store.clusters.model import shard_notes
from cellfeed.store.clusters.model.shard_map import read_map, write_map
from cellfeed.store.clusters.moves import heal, mover
from cellfeed.store.clusters.moves import healer as healer_module
from cellfeed.store.clusters.moves.healer import HEAL_AFTER_S, MoveHealer
from cellfeed.store.clusters.moves.underway import Underway, underway
from cellfeed.store.clusters.operating.present_role import master_state
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import InvalidRequest, StorageUnavailable
from cellfeed.store.failpoints import (
    FAILPOINTS,
    FailpointReached,
    clear_failpoints,
    passes,
    set_failpoint,
)
from tests.faults.mover_process import kill_mover_at
from tests.support.mariadb_cluster import SHARDS, TestCluster
from tests.support.move_steps import (
    SHARD,
    admins,
    cells,
    check,
    log,
    move,
    open_engine,
    paused_mover,
    serving,
    tailing,
    urls,
    writing,
)
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]


@pytest.fixture
def engine(clusters: dict[str, TestCluster]) -> Iterator[ClusteredEngine]:
    with closing(open_engine(clusters)) as opened:
        yield opened


class Healer:
    """Looks when it is asked to, by a clock of its own."""

    def __init__(self, clusters: dict[str, TestCluster]) -> None:
        self.healed: list[str] = []
        self.now_s = 0.0
        self._healer = MoveHealer(admins(clusters), self.healed.append, lambda: self.now_s)

    def look(self) -> None:
        self._healer.look()

    def later(self) -> None:
        """A look at the moves, and another one when they have been there for long enough."""
        self.look()
        self.now_s += HEAL_AFTER_S
        self.look()

    def close(self) -> None:
        self._healer.close()


@pytest.fixture
def healer(clusters: dict[str, TestCluster]) -> Iterator[Healer]:
    with closing(Healer(clusters)) as made:
        yield made


def stages(clusters: dict[str, TestCluster]) -> list[str]:
    return [each.stage for each in underway(admins(clusters)) if each.shard == SHARD]


@pytest.mark.parametrize(
    ("point", "stage"),
    [
        ("move.after_hide", "fenced"),
        ("move.before_switch", "fenced"),
        ("move.after_switch", "switched"),
    ],
)
def test_a_shard_that_a_killed_mover_left_is_served_again_without_an_operator(
    clusters: dict[str, TestCluster],
    engine: ClusteredEngine,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    stage: str,
) -> None:
    monkeypatch.setattr(healer_module, "LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(healer_module, "HEAL_AFTER_S", 0.5)
    stop, healed = threading.Event(), list[str]()
    with (
        tailing(clusters) as tailer,
        Datastore(open_engine(clusters)) as datastore,
        writing(datastore) as writer,
    ):
        kill_mover_at(point, urls(clusters), SHARDS, SHARD, "c2")
        assert stages(clusters) == [stage]
        thread = threading.Thread(
            target=MoveHealer(admins(clusters), healed.append).run, args=(stop,)
        )
        thread.start()
        try:
            wait_until(lambda: bool(healed), "it is healed")
            writer.goes_on()
        finally:
            stop.set()
            thread.join(60)
        assert serving(clusters) == (["c1"] if stage == "fenced" else ["c2"])
        assert stages(clusters) == (["copying"] if stage == "fenced" else ["kept"])
        if stage == "fenced":
            move(clusters, engine, "c2")  # continues with the copy
        assert serving(clusters) == ["c2"]
        writer.goes_on()
        writer.stop()
        check(clusters, writer, tailer)


def test_a_mover_that_stands_still_is_left_alone_then_cut_off_and_switches_nothing_later(
    clusters: dict[str, TestCluster],
    engine: ClusteredEngine,
    healer: Healer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine.put(cells(1, 50))
    with paused_mover(clusters, engine, "move.before_switch") as (go_on, ended):
        healer.later()
        assert (healer.healed, serving(clusters)) == ([], [])  # it may be alive
        monkeypatch.setattr(heal, "SILENT_MAX_S", 0.2)
        # The healer dies when it has cut it off, and another continues.
        set_failpoint("heal.after_cut_off", "raise")
        wait_until(lambda: died_at(healer, "heal.after_cut_off"), "it is cut off")
        wait_until(lambda: healed(healer), "the shard is given back")
        assert serving(clusters) == ["c1"]
        [new] = engine.put(cells(2, 1))
        assert new.added_id == 50
        go_on.set()
        wait_until(lambda: bool(ended), "the mover has ended")
        assert isinstance(ended[0], StorageUnavailable)
    assert serving(clusters) == ["c1"]
    assert len(log(engine)) == 51
    assert move(clusters, engine, "c2").target == "c2"
    assert [each[0] for each in log(engine)] == list(range(51))


def test_a_mover_that_stands_still_behind_its_switch_is_cut_off_and_the_map_is_written(
    clusters: dict[str, TestCluster],
    engine: ClusteredEngine,
    healer: Healer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine.put(cells(1, 20))
    monkeypatch.setattr(heal, "SILENT_MAX_S", 0.2)
    with paused_mover(clusters, engine, "move.after_switch") as (go_on, ended):
        wait_until(lambda: healed(healer), "the map is written")
        assert stages(clusters) == ["kept"]
        [new] = engine.put(cells(2, 1))
        assert new.added_id == 20
        go_on.set()
        wait_until(lambda: bool(ended), "the mover has ended")
        assert isinstance(ended[0], StorageUnavailable)
    assert serving(clusters) == ["c2"]
    assert stages(clusters) == ["kept"]


def healed(healer: Healer) -> bool:
    healer.later()
    return bool(healer.healed)


def died_at(healer: Healer, point: str) -> bool:
    with suppress(FailpointReached):
        healer.later()
    return passes(point) > 0


HEAL_POINTS = sorted(point for point in FAILPOINTS if point.startswith("heal."))


@pytest.mark.parametrize("point", [*HEAL_POINTS, "move.between_maps"])
def test_a_killed_healer_leaves_its_work_to_the_next_one_while_the_mover_stands_still(
    clusters: dict[str, TestCluster],
    engine: ClusteredEngine,
    healer: Healer,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    engine.put(cells(1, 20))
    switched = point == "move.between_maps"
    with paused_mover(
        clusters, engine, "move.after_switch" if switched else "move.before_switch"
    ) as (go_on, ended):
        kill_mover_at(point, urls(clusters), SHARDS, SHARD, "c2", "heal")
        assert serving(clusters) == (
            ["c2"] if switched else ["c1"] if point == "heal.after_give_back" else []
        )
        assert stages(clusters) == (
            ["switched"]
            if switched
            else ["copying"]
            if point == "heal.after_give_back"
            else ["fenced"]
        )
        monkeypatch.setattr(heal, "SILENT_MAX_S", 0.2)
        left = "kept" if switched else "copying"
        wait_until(
            lambda: healed(healer) or stages(clusters) == [left],
            "the next one has healed what is left",
        )
        assert bool(healer.healed) == (point != "heal.after_give_back")
        [new] = engine.put(cells(2, 1))
        assert new.added_id == 20
        go_on.set()
        wait_until(lambda: bool(ended), "the mover has ended")
        assert isinstance(ended[0], StorageUnavailable)
    assert serving(clusters) == (["c2"] if switched else ["c1"])
    assert stages(clusters) == [left]
    if point == "heal.after_bar":
        mover.roll_back(admins(clusters), SHARD)
        assert stages(clusters) == []
    move(clusters, engine, "c2")
    assert serving(clusters) == ["c2"]
    assert [each[0] for each in log(engine)] == list(range(21))


def leave_fenced(clusters: dict[str, TestCluster], engine: ClusteredEngine) -> None:
    """Some cells in the shard, and a move to c2 that ends behind its fence."""
    engine.put(cells(1, 10))
    set_failpoint("move.after_fence", "raise")
    with pytest.raises(FailpointReached):
        move(clusters, engine, "c2")
    clear_failpoints()


def test_a_move_that_switched_since_the_look_is_not_taken_back(
    clusters: dict[str, TestCluster], engine: ClusteredEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.put(cells(1, 10))
    move(clusters, engine, "c2")
    before = Underway(SHARD, "c1", "c2", "fenced", 10, 10)
    monkeypatch.setattr(mover, "underway_of", lambda *_: before)
    with pytest.raises(StorageUnavailable, match="was switched to c2 meanwhile"):
        mover.roll_back(admins(clusters), SHARD, again_s=0)
    assert heal.heal(admins(clusters), before) is None
    only = {"c1": clusters["c1"].admin}
    with pytest.raises(StorageUnavailable, match="alone knows"):
        heal.heal(only, before)
    assert serving(clusters) == ["c2"]


def test_a_shard_given_back_during_the_search_is_found(
    clusters: dict[str, TestCluster],
    engine: ClusteredEngine,
    healer: Healer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leave_fenced(clusters, engine)
    looked = list[str]()

    def query_and_heal(connection: Connection[Any], sql: str) -> Any:
        rows = query(connection, sql)
        if not looked and "FROM trips_meta.shard_counter" in sql:
            looked.append(sql)
            healer.later()
        return rows

    monkeypatch.setattr(shard_notes, "query", query_and_heal)
    assert stages(clusters) == ["fenced"]
    assert healer.healed
    assert stages(clusters) == ["copying"]


def test_a_lost_note_of_a_copy_is_reported_and_its_fence_stays_for_an_operator(
    clusters: dict[str, TestCluster],
    engine: ClusteredEngine,
    healer: Healer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    leave_fenced(clusters, engine)
    clusters["c2"].servers["a"].sql("DELETE FROM trips_meta.shard_arriving")
    healer.later()
    assert "has no note of a copy of shard 1" in caplog.text
    assert serving(clusters) == []
    state = master_state(clusters["c1"].admin)
    known = read_map(state)
    assert known is not None
    write_map({"c1": state}, known.moved(SHARD, "c3", 9))  # as if it were left from a move before
    with pytest.raises(
        InvalidRequest, match="is on cluster c3, which the configuration does not name"
    ):
        mover.roll_back(admins(clusters), SHARD)
    write_map({"c1": state}, known.moved(SHARD, "c1", 10))
    assert mover.roll_back(admins(clusters), SHARD).source == "c1"
    assert serving(clusters) == ["c1"]
