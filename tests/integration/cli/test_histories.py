"""A history knows itself: servers and clusters of another one are refused, with any names and
positions."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.clusters.model.roles import change_role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import MAP_KEY, even_map, read_map
from cellfeed.store.clusters.operating.clone import clone
from cellfeed.store.clusters.operating.create import init_cluster
from cellfeed.store.clusters.operating.migrate import identify
from cellfeed.store.clusters.operating.present_role import cluster_role, master_state
from cellfeed.store.clusters.operating.rejoin import follow_again
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.read_only import is_read_only
from cellfeed.store.errors import ProtectData
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from cellfeed.store.histories import History
from tests.support.cluster_steps import cells, open_engine
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import (
    DATASTORE,
    SHARDS,
    TestCluster,
    cells_of_shard,
    make_cluster,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]


@pytest.fixture
def two(servers: list[MariaDB]) -> Iterator[tuple[TestCluster, TestCluster]]:
    """Production of two nodes and staging of one: two datastores of the same name, whose cluster
    has the same name."""
    made = make_cluster("c1", servers[:2]), make_cluster("c1", servers[2:])
    yield made
    for each in made:
        each.admin.close()
        each.bare()


def admin_of(*servers: MariaDB, name: str = "c1") -> ClusterServers:
    nodes = {node: MySqlServer(server.url) for node, server in zip("abc", servers, strict=False)}
    return ClusterServers(name, DATASTORE, SHARDS, nodes, semi_sync=True)


def ids_of(cluster: TestCluster) -> str:
    return cluster_role(cluster.admin)[0].history_id


def test_role_and_shard_map_of_a_new_cluster_have_one_history(cluster: TestCluster) -> None:
    role, _ = cluster_role(cluster.admin)
    shard_map = read_map(master_state(cluster.admin))
    assert shard_map is not None
    assert len(role.history_id) == 32
    assert role.history_id == shard_map.history_id
    store = open_engine(cluster)
    assert store.history == shard_map.history == History(role.history_id, "", role.history_id)
    store.close()


def test_a_server_of_another_history_joins_no_cluster_and_is_not_believed(
    two: tuple[TestCluster, TestCluster], servers: list[MariaDB]
) -> None:
    production, staging = two
    mixed = admin_of(*servers)
    role, silent = cluster_role(mixed)
    assert role.history_id == ids_of(production)
    assert ids_of(staging) in silent["c"]
    assert "--copy" in silent["c"]
    with pytest.raises(
        ProtectData,
        match=f"belongs to history {ids_of(staging)}, cluster c1 to {ids_of(production)}",
    ):
        follow_again(mixed, "c")
    assert not is_read_only(mixed.server("c")), "it takes its own writes"
    # The advice of its message: then it is one of the cluster.
    clone(mixed, "c")
    role, silent = cluster_role(mixed)
    assert silent == {}
    assert role.minions == ["b", "c"]
    mixed.close()


def test_two_nodes_of_two_histories_make_no_decision(
    two: tuple[TestCluster, TestCluster], servers: list[MariaDB]
) -> None:
    mixed = admin_of(servers[0], servers[2])
    with pytest.raises(ProtectData, match="two histories"):
        cluster_role(mixed)
    mixed.close()


def test_init_refuses_a_cluster_of_another_datastore(two: tuple[TestCluster, TestCluster]) -> None:
    """Staging's servers in production's configuration: they were taken "as before", and staging's
    shard map won."""
    production, staging = two
    present = read_map(master_state(production.admin))
    assert present is not None
    with pytest.raises(
        ProtectData,
        match=f"{ids_of(staging)}, the datastore to {ids_of(production)}.*Nothing was done",
    ):
        init_cluster(staging.admin, present, known=True)
    again = init_cluster(production.admin, present, known=True)
    assert again.was_there


def test_a_cluster_from_before_identities_gets_one_and_a_killed_run_is_completed(
    cluster: TestCluster,
) -> None:
    state = master_state(cluster.admin)
    role, _ = cluster_role(cluster.admin)
    assert change_role(state, role, msgspec.structs.replace(role, history_id=""))
    found = read_map(state)
    assert found is not None
    cluster.servers["a"].sql(
        "UPDATE trips_meta.state_entry SET value ="
        f" X'{msgspec.json.encode(msgspec.structs.replace(found, history_id='')).hex()}' WHERE"
        f" entry_key = '{MAP_KEY}'"
    )
    old_process = open_engine(cluster)
    assert old_process.put(cells(range(3)))[0].outcome is Outcome.STORED
    set_failpoint("cluster.identify.after_map", "raise")
    with pytest.raises(FailpointReached):
        identify([cluster.admin])
    clear_failpoints()
    begun = read_map(master_state(cluster.admin))
    assert begun is not None
    assert (
        identify([cluster.admin])
        == begun.history_id
        == identify([cluster.admin])
        == ids_of(cluster)
    )
    # It does not have to be started again.
    assert old_process.put(cells_of_shard(0, 5, 1))[0].outcome is Outcome.STORED
    old_process.close()


def test_an_even_map_begins_a_history() -> None:
    assert even_map("trips", 4, ["c1"]).history_id != even_map("trips", 4, ["c1"]).history_id
