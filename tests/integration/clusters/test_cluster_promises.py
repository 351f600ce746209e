"""A promotion that dies when only its new master has heard of it: nothing is acknowledged in the
epoch before, and no epoch is given twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.clusters.model.promises import promised_epoch
from cellfeed.store.clusters.operating.auto_failover import FailoverSupervisor
from cellfeed.store.clusters.operating.clone import clone
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.operating.rejoin import come_back, follow_again, start_again
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.engines.mysql.read_only import open_for_writes
from cellfeed.store.engines.mysql.replication import minion_status
from cellfeed.store.errors import StorageUnavailable, Unavailable
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from tests.support.cluster_steps import cells, checksums, eventually, put_until_stored
from tests.support.mariadb_cluster import TestCluster

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]


@pytest.fixture
def raised(cluster: TestCluster, engine: ClusteredEngine) -> Iterator[TestCluster]:
    """Master a died; b raised epoch 1, and died before any node followed it; a is back as it was,
    and takes writes."""
    put_until_stored(engine, cells(range(10)))
    eventually(
        lambda: checksums(cluster, "b") == checksums(cluster, "c") == checksums(cluster, "a"),
        "both minions have all, so b may be chosen",
    )
    cluster.servers["a"].kill()
    set_failpoint("promote.after_raise", "raise")
    with pytest.raises(FailpointReached):
        promote(cluster.admin, to="b")
    clear_failpoints()
    cluster.servers["b"].kill()
    cluster.servers["a"].start()
    open_for_writes(cluster.admin.server("a"))
    cluster.servers["c"].kill()
    cluster.servers["c"].start()
    yield cluster
    for server in cluster.servers.values():
        if not server.is_running():
            server.start()


def test_no_node_follows_or_acknowledges_in_an_epoch_below_a_promise(
    raised: TestCluster, engine: ClusteredEngine
) -> None:
    role, _ = cluster_role(raised.admin)
    assert (role.epoch, role.master) == (0, "a")
    assert promised_epoch(raised.admin, role.history_id, ["b"]) == 1
    assert minion_status(raised.admin.server("c")) is None, (
        "it follows nobody, also after a restart"
    )
    with pytest.raises(StorageUnavailable, match="promotion to epoch 1 began"):
        follow_again(raised.admin, "c")
    with pytest.raises(StorageUnavailable, match="promotion to epoch 1 began"):
        start_again(raised.admin, "c", 0)
    supervisor = FailoverSupervisor(raised.admin)
    supervisor.look()
    supervisor.close()
    assert minion_status(raised.admin.server("c")) is None
    with pytest.raises(Unavailable):
        engine.put(cells(range(10, 12)))
    # The node returns, as the master that it is: now the others follow it.
    raised.servers["b"].start()
    role, _ = cluster_role(raised.admin)
    assert (role.epoch, role.master) == (1, "b")
    follow_again(raised.admin, "c")
    assert come_back(raised.admin, "a") is None or clone(raised.admin, "a")
    put_until_stored(engine, cells(range(10)))
    assert sum(head.next_added_id for head in engine.heads().values()) == 10, (
        "each was there already"
    )


def test_a_promotion_without_the_promising_node_takes_an_epoch_above_the_promise(
    raised: TestCluster, engine: ClusteredEngine
) -> None:
    done = promote(raised.admin, give_up=["b"])
    assert (done.master, done.epoch, done.fenced) == ("c", 2, True)
    follow_again(raised.admin, "a")
    put_until_stored(engine, cells(range(10, 20)))
    assert {result.outcome for result in engine.put(cells(range(10)))} == {Outcome.EXISTS}
    # The node that nobody followed returns with an epoch that the others never had: its position
    # proves nothing.
    raised.servers["b"].start()
    assert (cluster_role(raised.admin)[0].epoch, cluster_role(raised.admin)[0].master) == (2, "c")
    beyond = come_back(raised.admin, "b")
    assert beyond is not None
    assert beyond.nothing
    clone(raised.admin, "b", listed=beyond)
    eventually(lambda: checksums(raised, "b") == checksums(raised, "c"), "a copy")


def test_a_promotion_that_dies_between_promise_and_raise_costs_an_epoch_and_no_cell(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    put_until_stored(engine, cells(range(10)))
    set_failpoint("promote.after_promise", "raise")
    with pytest.raises(FailpointReached):
        promote(cluster.admin)
    clear_failpoints()
    done = promote(cluster.admin)
    assert done.epoch == 2
    assert done.master in "bc"
    follow_again(cluster.admin, "a")
    assert {result.outcome for result in engine.put(cells(range(10)))} == {Outcome.EXISTS}
    put_until_stored(engine, cells(range(10, 20)))


def test_a_promise_needs_a_majority(
    cluster: TestCluster, engine: ClusteredEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_until_stored(engine, cells(range(5)))
    monkeypatch.setattr("cellfeed.store.clusters.model.promises.write_promise", _refuses)
    with pytest.raises(StorageUnavailable, match="majority is needed"):
        promote(cluster.admin)
    monkeypatch.undo()
    # Refused before the raise: all is as it was.
    assert cluster_role(cluster.admin)[0].master == "a"
    put_until_stored(engine, cells(range(5, 10)))


def _refuses(*_: object) -> None:
    raise StorageUnavailable("the disk is full")
