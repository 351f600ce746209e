"""A dropped copy of a shard stays dropped when a minion is promoted that had not heard of it: a
mover that drops it waits for the minions before it says so, under asynchronous replication as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from cellfeed.store.cells.body_codec import is_erased
from cellfeed.store.cells.cell import NewCell
from cellfeed.store.clusters.model.shard_map import even_map
from cellfeed.store.clusters.moves import copying, mover, switching, waiting
from cellfeed.store.clusters.moves.underway import underway
from cellfeed.store.clusters.serving import placement
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.errors import ShardMoving, StorageUnavailable
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import (
    BUSY_FENCE_MAX_S,
    DATASTORE,
    SHARDS,
    TestCluster,
    make_cluster,
)
from tests.support.move_steps import SHARD, admins, cells, move, open_engine, shown
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]


@pytest.fixture
def clusters(
    servers: list[MariaDB], monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, TestCluster]]:
    """Two clusters that replicate asynchronously: c1 of one node, c2 of a master and a minion."""
    monkeypatch.setattr(waiting, "FENCE_MAX_S", BUSY_FENCE_MAX_S)
    monkeypatch.setattr(placement, "MOVE_WAIT_S", 0.1)
    divided = even_map(DATASTORE, SHARDS, ["c1", "c2"])
    made = {
        "c1": make_cluster("c1", servers[:1], divided, semi_sync=False),
        "c2": make_cluster("c2", servers[1:], divided, semi_sync=False),
    }
    yield made
    clear_failpoints()
    for each in made.values():
        each.admin.close()
        each.bare()


@pytest.fixture
def engine(clusters: dict[str, TestCluster]) -> Iterator[ClusteredEngine]:
    with closing(open_engine(clusters)) as opened:
        yield opened


@contextmanager
def behind(minion: MariaDB, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A minion that hears nothing of its master; a caller that waits for it has little patience."""
    with monkeypatch.context() as patched:
        for part in (copying, switching):
            patched.setattr(part, "AGAIN_S", 0.5)
        patched.setattr(waiting, "DROP_WAIT_S", 0.5)
        patched.setattr(mover, "DROP_WAIT_S", 0.5)
        minion.sql("STOP SLAVE")
        try:
            yield
        finally:
            minion.sql("START SLAVE")


def put_some(engine: ClusteredEngine) -> NewCell:
    """Twenty cells; gives one of them."""
    engine.put(cells(1, 20))
    return cells(1, 1)[0]


def left_copy(clusters: dict[str, TestCluster], engine: ClusteredEngine) -> NewCell:
    """A mover has died behind a copy of some cells that both nodes of c2 have; gives one of the
    cells."""
    victim = put_some(engine)
    set_failpoint("move.before_fence", "raise")
    with pytest.raises(FailpointReached):
        move(clusters, engine, "c2")
    clear_failpoints()
    assert all(has_tables(server) for server in clusters["c2"].servers.values())
    return victim


def has_tables(server: MariaDB) -> bool:
    """As the product asks: an empty database goes a moment after its last table."""
    return bool(
        server.sql(
            "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'trips_0001'"
        )
    )


def mark(clusters: dict[str, TestCluster]) -> str:
    [(told,)] = (
        clusters["c1"]
        .servers["a"]
        .sql(f"SELECT copied_to FROM trips_meta.shard_counter WHERE shard = {SHARD}")
    )
    return told.decode() if isinstance(told, bytes) else str(told)


def test_the_source_is_not_erased_before_a_minion_too_has_dropped_the_copy(
    clusters: dict[str, TestCluster], engine: ClusteredEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = left_copy(clusters, engine)
    master, minion = clusters["c2"].servers["a"], clusters["c2"].servers["b"]
    with behind(minion, monkeypatch):
        with pytest.raises(
            ShardMoving, match="no node of c2 but its master has dropped the copy of shard 1"
        ):
            engine.erase(victim.row_key)
        assert (has_tables(master), has_tables(minion)) == (
            False,
            True,
        ), "a promotion now would bring it back"
        assert mark(clusters) == "c2"
        assert [(each.stage, each.target) for each in underway(admins(clusters))] == [
            ("copying", "c2")
        ]
        assert not any(is_erased(cell.body) for cell in engine.row_cells(victim.row_key))
        with pytest.raises(StorageUnavailable, match="has dropped the copy"):
            mover.roll_back(admins(clusters), SHARD, again_s=0)
    assert engine.erase(victim.row_key).cells == 1
    assert (has_tables(master), has_tables(minion), mark(clusters)) == (False, False, "")
    assert underway(admins(clusters)) == []


def test_a_copy_begun_again_after_an_erasure_is_on_a_minion_before_a_cell_is_copied(
    clusters: dict[str, TestCluster], engine: ClusteredEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = left_copy(clusters, engine)
    clusters["c1"].servers["a"].sql(
        f"UPDATE trips_meta.shard_counter SET copied_to = '' WHERE shard = {SHARD}"
    )  # as a copy that a promotion has brought back
    assert engine.erase(victim.row_key).cells == 1
    with behind(clusters["c2"].servers["b"], monkeypatch):
        with pytest.raises(
            StorageUnavailable, match="no node of c2 but its master has begun the copy again"
        ):
            mover.move_shard(admins(clusters), SHARD, "c2", engine.dictionaries.complete, again_s=0)
        assert mark(clusters) == ""
    move(clusters, engine, "c2")
    shown(engine, 21)
    for server in clusters["c2"].servers.values():
        wait_until(
            lambda server=server: bool(bodies(server, victim.row_key)),  # type: ignore[misc]
            f"{server.url} has the row's places",
        )
        assert all(map(is_erased, bodies(server, victim.row_key)))


def bodies(server: MariaDB, row_key: bytes) -> list[bytes]:
    return [
        bytes(body)
        for (body,) in server.sql(
            f"SELECT body FROM trips_{SHARD:04d}.cell WHERE row_key = X'{row_key.hex()}'"
        )
    ]


def test_a_kept_source_copy_is_reported_until_a_minion_too_has_dropped_it(
    clusters: dict[str, TestCluster], engine: ClusteredEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = put_some(engine)
    move(clusters, engine, "c2")
    move(clusters, engine, "c1")
    complete = engine.dictionaries.complete
    wait_until(
        lambda: all(has_tables(server) for server in clusters["c2"].servers.values()),
        "both nodes keep it",
    )
    with behind(clusters["c2"].servers["b"], monkeypatch):
        with pytest.raises(StorageUnavailable, match="clean again when they follow"):
            mover.clean(admins(clusters), SHARD, complete)
        assert [(each.stage, each.source) for each in underway(admins(clusters))] == [
            ("kept", "c2")
        ]
        assert "cluster c2 keeps shards 1" in engine.erase(victim.row_key).kept[0]
    assert mover.clean(admins(clusters), SHARD, complete) == "c2"
    assert not any(has_tables(server) for server in clusters["c2"].servers.values())
    assert (underway(admins(clusters)), engine.erase(victim.row_key).kept) == ([], ())
