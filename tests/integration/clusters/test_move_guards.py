"""The facts that a move checks again before it changes anything, on real MariaDB servers: the token
of a fence, nodes that lag, and index entries that differ in nothing but their values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from cellfeed.store.cells.cell import RESTORED_COLUMN
from cellfeed.store.clusters.moves import copying, mover
from cellfeed.store.clusters.moves.log_copy import _read
from cellfeed.store.clusters.moves.shard_side import ShardSide
from cellfeed.store.clusters.moves.steps import opened_side
from cellfeed.store.clusters.moves.take_back import bar_switch
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.failpoints import (
    FailpointReached,
    clear_failpoints,
    set_failpoint,
    unwatch_failpoint,
    watch_failpoint,
)
from cellfeed.store.indexes.definition_file import parse_definition
from tests.support.kept_index import index_worker, made_index
from tests.support.mariadb_cluster import TestCluster
from tests.support.move_steps import (
    SHARD,
    admins,
    cells,
    log,
    move,
    open_engine,
    serving,
    shown,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]

INDEX = parse_definition(
    "{table: cells_by_n, datastore: trips, column_defs: [{column_name: BASE, fields: [{field: n,"
    " type: int}]}]}"
)


@pytest.fixture
def engine(clusters: dict[str, TestCluster]) -> Iterator[ClusteredEngine]:
    with closing(open_engine(clusters)) as opened:
        yield opened


def killed_at(
    point: str, clusters: dict[str, TestCluster], engine: ClusteredEngine, to: str
) -> None:
    """A move to that cluster that ends at the failpoint."""
    set_failpoint(point, "raise")
    with pytest.raises(FailpointReached):
        move(clusters, engine, to)
    clear_failpoints()


@contextmanager
def both_sides(clusters: dict[str, TestCluster]) -> Iterator[tuple[ShardSide, ShardSide]]:
    """The shard on c1 and on c2, locked."""
    with ExitStack() as opened:
        first, second = (
            opened.enter_context(opened_side(each, SHARD)) for each in admins(clusters).values()
        )
        yield first, second


def test_a_fence_ends_only_for_its_own_token(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    engine.put(cells(1, 10))
    killed_at("move.after_fence", clusters, engine, "c2")
    with both_sides(clusters) as (source, _):
        left = source.notes().leaving
        assert left is not None
        with pytest.raises(StorageUnavailable, match="is another one by now"):
            source.give_back(left.token + 1, "c2")
    assert serving(clusters) == []
    with both_sides(clusters) as (source, _):
        source.give_back(left.token, "c2")
    assert serving(clusters) == ["c1"]


def test_once_a_move_is_barred_a_switch_of_its_fence_that_comes_late_is_refused(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    engine.put(cells(1, 10))
    killed_at("move.before_switch", clusters, engine, "c2")
    with both_sides(clusters) as (source, target):
        left, epochs, columns = source.notes().leaving, source.leader_epochs(), source.columns()
        assert left is not None
        bar_switch(source, target)
        target.show()  # the mover that comes late does so before it switches
        with pytest.raises(StorageUnavailable, match="is moved by somebody else"):
            target.switch(left, epochs, columns)
    assert serving(clusters) == []
    move(clusters, engine, "c2")
    assert (serving(clusters), len(log(engine))) == (["c2"], 10)


def test_cells_that_a_minion_of_the_source_lacks_are_not_copied_yet(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    """A promotion of that minion would give their ids to other cells."""
    engine.put(cells(1, 10))
    shown(engine, 10)
    minion = clusters["c1"].servers["b"]
    minion.sql("STOP SLAVE SQL_THREAD")
    try:
        engine.put(cells(2, 5))
        with both_sides(clusters) as (source, _):
            serves = source.notes().serves
            assert serves is not None
            assert (serves[1], source.replicated_to_all()) == (15, 10)
    finally:
        minion.sql("START SLAVE SQL_THREAD")


def test_no_cell_is_copied_before_every_node_of_the_source_ends_its_erasures(
    clusters: dict[str, TestCluster], engine: ClusteredEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A promotion of the minion would erase a row whose body the copy has."""
    monkeypatch.setattr(copying, "AGAIN_S", 0.5)
    engine.put(cells(1, 10))
    minion = clusters["c1"].servers["b"]
    minion.sql("STOP SLAVE SQL_THREAD")
    try:
        with pytest.raises(StorageUnavailable, match="a node of c1 lacks the mark"):
            mover.move_shard(admins(clusters), SHARD, "c2", engine.dictionaries.complete, again_s=0)
    finally:
        minion.sql("START SLAVE SQL_THREAD")
    assert clusters["c2"].servers["a"].sql("SELECT COUNT(*) FROM trips_0001.moved_cell") == [(0,)]


def test_cells_are_appended_only_at_the_end_of_the_copy(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    engine.put(cells(1, 10))
    killed_at("move.before_fence", clusters, engine, "c2")
    with (
        both_sides(clusters) as (_, target),
        pytest.raises(StorageUnavailable, match="does not end at 12 any more"),
    ):
        target.append(12, 13, [])
    move(clusters, engine, "c2")
    assert [each[0] for each in log(engine)] == list(range(10))


def test_behind_ids_that_were_left_out_no_cell_is_read_that_a_minion_may_lack(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    """So many rows from a place on are more ids than so many."""
    engine.put(cells(1, 10))
    clusters["c1"].servers["a"].sql(
        f"UPDATE trips_meta.shard_counter SET next_added_id = 100 WHERE shard = {SHARD}"
    )
    engine.put([cells(2, 1)[0]._replace(column_name=RESTORED_COLUMN), *cells(3, 4)])
    with both_sides(clusters) as (source, _):
        step = _read(source, "trips_0001.cell", 0, 102)
    assert (step.first, step.after, len(step.rows)) == (0, 102, 12)


def test_no_shard_is_switched_while_a_node_of_the_target_lacks_the_rest_of_the_log(
    clusters: dict[str, TestCluster], engine: ClusteredEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.put(cells(1, 10))
    move(clusters, engine, "c2")
    minion = clusters["c1"].servers["b"]

    def fall_behind() -> None:
        unwatch_failpoint("move.before_fence")
        minion.sql("STOP SLAVE SQL_THREAD")
        engine.put(cells(2, 5))

    def follow() -> None:
        minion.sql("START SLAVE SQL_THREAD")

    watch_failpoint("move.before_fence", fall_behind)
    watch_failpoint("move.inside_give_back", follow)
    try:
        move(clusters, engine, "c1")
    finally:
        follow()
        clear_failpoints()
    assert "was given back, to be fenced again: a node of c1 lacks cells" in caplog.text
    shown(engine, 15)
    assert [each[0] for each in log(engine)] == list(range(15))


def test_an_entry_that_changes_in_place_while_its_shard_moves_is_copied_again(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    with Datastore(open_engine(clusters)) as datastore, index_worker(datastore):
        table = made_index(datastore, INDEX).table.name
    engine.put(cells(1, 5))
    source, target = clusters["c1"].servers["a"], clusters["c2"].servers["a"]
    columns = "HEX(row_key), live, f0, r0"
    source.sql(
        f"INSERT INTO trips_0001.{table} (row_key, live, f0, r0) VALUES (REPEAT('k', 16), 1, 7, 1)"
    )

    def change() -> None:
        unwatch_failpoint("move.after_fence")
        source.sql(f"UPDATE trips_0001.{table} SET r0 = 2")

    watch_failpoint("move.after_fence", change)
    move(clusters, engine, "c2")
    assert target.sql(f"SELECT {columns} FROM trips_0001.{table}") == [("6B" * 16, 1, 7, 2)]
