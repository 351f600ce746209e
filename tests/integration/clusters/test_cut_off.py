"""A process that is cut off from every node but an old master: the cells that it may still read are
true, and the others are reported as such (I3, I6)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from uuid import UUID, uuid5

import pytest

from cellfeed.store.cells.cell import NewCell, new_cell
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.clusters.serving.shown_heads import Watermark
from cellfeed.store.engines.contract.values import Replica
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.limits import ADDED_ID_MAX
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import (
    DATASTORE,
    SHARDS,
    TestCluster,
    make_cluster,
    node_opener,
)
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]

NAMESPACE = UUID("c1f0b2c7-5a36-4be1-8d4a-1f6f7c0e0a01")
Log = dict[int, list[tuple[int, bytes]]]


class CutOff:
    """A cluster, and the way of one process to each of its nodes. Replication and the operator go
    other ways."""

    def __init__(self, cluster: TestCluster, ways: dict[str, TcpProxy]) -> None:
        self.cluster, self.ways = cluster, ways

    def engine(self, watermark: Watermark = Watermark.REPLICATED) -> ClusteredEngine:
        """The connections of the process."""
        openers = {
            name: node_opener(f"mysql://root@127.0.0.1:{way.port}")
            for name, way in self.ways.items()
        }
        return ClusteredEngine(DATASTORE, SHARDS, {self.cluster.name: openers}, watermark=watermark)

    def from_the_minions(self) -> int:
        """Cuts the process off from both minions; how many connections that broke."""
        return sum(self.ways[name].down() for name in "bc")

    def promote_behind_its_back(self) -> str:
        """The acts of the other side of the partition, unknown to the old master and the process:
        the new master."""
        for name in "bc":
            self.cluster.servers[name].sql("STOP SLAVE IO_THREAD")
        nowhere = MySqlServer("mysql://root@127.0.0.1:1")
        other_side = ClusterServers(
            "c1", DATASTORE, SHARDS, {**self.cluster.admin.servers, "a": nowhere}, semi_sync=False
        )
        try:
            return promote(other_side).master
        finally:
            nowhere.close()


@pytest.fixture
def system(servers: list[MariaDB]) -> Iterator[CutOff]:
    """Asynchronous replication: an old master continues to commit and acknowledge, the worst that a
    reader can meet."""
    cluster = make_cluster("c1", servers, semi_sync=False)
    with ExitStack() as stack:
        yield CutOff(
            cluster,
            {
                name: stack.enter_context(TcpProxy(server.port))
                for name, server in cluster.servers.items()
            },
        )
        cluster.admin.close()
    cluster.bare()


def cells(numbers: range, column: str = "BASE", ref_key: int = 1) -> list[NewCell]:
    return [
        new_cell(uuid5(NAMESPACE, str(n)), column, ref_key, {"n": n, "ref": ref_key})
        for n in numbers
    ]


def stored(engine: ClusteredEngine, wanted: list[NewCell]) -> None:
    assert {result.outcome for result in engine.put(wanted)} == {Outcome.STORED}


def log(engine: ClusteredEngine) -> Log:
    return {
        shard: [(cell.added_id, cell.row_key) for cell in engine.scan(shard, 0, 10_000)]
        for shard in range(SHARDS)
    }


def shown(engine: ClusteredEngine) -> int:
    """Cells that readers may see; -1 while a node that failed is left alone for a moment."""
    try:
        return sum(head.watermark for head in engine.heads().values())
    except StorageUnavailable:
        return -1


def test_a_log_never_shows_an_old_masters_tail_and_continues_with_the_new_masters_cells(
    system: CutOff,
) -> None:
    engine, other_side = (
        system.engine(),
        ClusteredEngine(DATASTORE, SHARDS, {"c1": system.cluster.openers()}),
    )
    try:
        stored(engine, cells(range(20)))
        wait_until(lambda: shown(engine) == 20, "replicated")
        before = log(engine)
        assert system.from_the_minions() > 0
        assert system.promote_behind_its_back() == "b"
        # The old master takes them, under ids that the new one gives to other cells.
        stored(engine, cells(range(20, 40)))
        wait_until(
            lambda: other_side.clusters["c1"].role().epoch == 1, "the other side knows its master"
        )
        stored(other_side, cells(range(100, 120)))
        for _ in range(20):
            assert log(engine) == before, "only what a minion had"
        wait_until(
            lambda: {head.next_added_id for head in engine.heads().values()} == {ADDED_ID_MAX},
            "a node that cannot know the next ids reports none",
        )
        fresh = system.engine()
        assert log(fresh) == {shard: [] for shard in range(SHARDS)}, (
            "a process that never heard of a minion shows nothing"
        )
        fresh.close()
        for way in system.ways.values():
            way.clear()
        wait_until(lambda: shown(engine) == 40, "the minion of the new master has what it stored")
        after = log(engine)
        assert all(after[shard][: len(seen)] == seen for shard, seen in before.items()), (
            "what was shown has not changed (I3)"
        )
        assert {row_key for found in after.values() for _, row_key in found} == {
            cell.row_key for cell in cells(range(20)) + cells(range(100, 120))
        }
        assert [[added_id for added_id, _ in found] for found in after.values()] == [
            list(range(len(found))) for found in after.values()
        ]
    finally:
        engine.close()
        other_side.close()


@pytest.mark.parametrize("read_from", list(Replica))
def test_cells_of_an_old_master_are_marked_stale_and_their_absence_is_not_reported(
    system: CutOff, read_from: Replica
) -> None:
    engine, other_side = (
        system.engine(),
        ClusteredEngine(DATASTORE, SHARDS, {"c1": system.cluster.openers()}),
    )
    [old], [new] = cells(range(1)), cells(range(1), ref_key=2)
    try:
        stored(engine, [old])
        [found] = engine.latest([(old.row_key, "BASE")])
        assert found is not None
        assert (found.cell.ref_key, found.stale) == (1, False)
        assert engine.get([new.triple]) == [None]
        wait_until(lambda: shown(engine) == 1, "replicated")
        assert system.from_the_minions() > 0
        system.promote_behind_its_back()
        wait_until(
            lambda: other_side.clusters["c1"].role().epoch == 1, "the other side knows its master"
        )
        stored(other_side, [new])

        def is_told() -> bool:
            [latest], [exact], [row] = (
                engine.latest([(old.row_key, "BASE")], read_from),
                engine.get([old.triple], read_from),
                engine.row([old.row_key], read_from),
            )
            assert latest is not None
            assert exact is not None
            assert latest.cell.ref_key == exact.cell.ref_key == row[0].cell.ref_key == 1
            return latest.stale and exact.stale and row[0].stale

        wait_until(is_told, "nobody has confirmed the old master for some seconds")
        for _ in range(20):
            assert is_told()
            with pytest.raises(StorageUnavailable, match="is not known"):
                engine.get([new.triple], read_from)
        for way in system.ways.values():
            way.clear()
        wait_until(
            lambda: engine.clusters["c1"].role().epoch == 1, "the process hears of the promotion"
        )

        def is_the_new_masters() -> bool:
            try:
                [found] = engine.latest([(old.row_key, "BASE")])
            except StorageUnavailable:  # a node that failed is left alone for a moment
                return False
            return found is not None and not found.stale and found.cell.ref_key == 2

        wait_until(is_the_new_masters, "the new master's word")
    finally:
        engine.close()
        other_side.close()


def test_one_minion_that_is_heard_is_enough_to_be_sure_of_the_master(system: CutOff) -> None:
    engine = system.engine()
    try:
        stored(engine, cells(range(5)))
        assert system.ways["c"].down() > 0
        wait_until(
            lambda: engine.clusters["c1"].nodes["c"].breaker.is_open,
            "the minion is given up for now",
        )
        for _ in range(50):
            found = engine.latest([(cell.row_key, "BASE") for cell in cells(range(5))])
            assert [each.stale for each in found if each] == [False] * 5
            assert engine.get([cell.triple for cell in cells(range(5, 6))]) == [None]
    finally:
        engine.close()
