"""A server of another datastore at an address that the configuration names: no promotion chooses or
fences it, nothing of it is shown, and nothing is written to it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.cell import NewCell, new_cell
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import even_map
from cellfeed.store.clusters.operating.auto_failover import FailoverSupervisor
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.operating.rejoin import follow_again
from cellfeed.store.clusters.serving import node
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.engines.contract.values import LogRange, Replica
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.read_only import is_read_only, make_read_only
from cellfeed.store.engines.mysql.replication import minion_status
from cellfeed.store.errors import CellfeedError, ProtectData, Unavailable
from tests.support import local_mariadb
from tests.support.cluster_steps import cells, eventually, open_engine, put_until_stored, shown
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import (
    DATASTORE,
    SHARDS,
    TestCluster,
    bare_servers,
    cells_of_shard,
    make_cluster,
    node_opener,
)
from tests.support.tcp_proxy import TcpProxy

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]

OURS = cells(range(60))
THEIRS = [new_cell(cell.row_key, "BASE", 1, {"of": "staging"}) for cell in OURS]


@pytest.fixture(scope="module")
def servers() -> Iterator[list[MariaDB]]:
    """Three of production, and one of staging."""
    if reason := local_mariadb.why_not():
        pytest.skip(reason)
    with bare_servers(4) as started:
        yield started


@pytest.fixture
def production(servers: list[MariaDB]) -> Iterator[TestCluster]:
    """Three nodes, with cells of its own."""
    made = make_cluster("c1", servers[:3])
    with closing(open_engine(made)) as engine:
        put_until_stored(engine, OURS)
        eventually(lambda: shown(engine) == len(OURS), "a minion has them")
    yield made
    made.admin.close()
    made.bare()


@pytest.fixture
def staging(servers: list[MariaDB]) -> Iterator[TestCluster]:
    """One node, of the same names and in the same epoch; the same row keys, other bodies, at other
    ids; many more transactions."""
    made = make_cluster("c1", servers[3:])
    with closing(open_engine(made)) as engine:
        put_until_stored(engine, THEIRS[::-1])
    made.servers["a"].sql(
        "SET gtid_seq_no = 1000000", "REPLACE INTO trips_meta.state_entry VALUES ('note', 'x', 0)"
    )
    yield made
    made.admin.close()
    made.bare()


@contextmanager
def configured(**nodes: MariaDB) -> Iterator[ClusterServers]:
    """The cluster as a configuration has it."""
    named = {name: MySqlServer(each.url) for name, each in nodes.items()}
    with closing(ClusterServers("c1", DATASTORE, SHARDS, named, semi_sync=True)) as made:
        yield made


def history_of(cluster: TestCluster) -> str:
    return cluster_role(cluster.admin)[0].history_id


def bodies(engine: ClusteredEngine, wanted: list[NewCell], read_from: Replica) -> set[bytes]:
    found = engine.get([cell.triple for cell in wanted], read_from)
    return {decode_body(each.cell.body) for each in found if each is not None}


def test_a_promotion_takes_no_server_of_another_history_in_the_same_epoch(
    production: TestCluster, staging: TestCluster, servers: list[MariaDB]
) -> None:
    a, b, c, theirs = servers
    with configured(a=a, b=b, c=c, d=theirs) as mixed:
        with pytest.raises(ProtectData, match=r"^d .*another history"):
            promote(mixed, to="d")
        done = promote(mixed)
    assert done.master in ("b", "c")
    assert done.left_out == ["d"]
    assert_left_alone(staging)


def test_a_promotion_is_refused_until_a_minion_with_a_foreign_address_is_given_up(
    production: TestCluster, staging: TestCluster, servers: list[MariaDB]
) -> None:
    a, b, _, theirs = servers
    with configured(a=a, b=b, c=theirs) as mixed:
        with pytest.raises(ProtectData) as refused:
            promote(mixed)
        for told in (history_of(staging), history_of(production), "given up"):
            assert told in str(refused.value)
        assert not is_read_only(production.admin.server("a")), "writes continue"
        assert_left_alone(staging)
        done = promote(mixed, give_up=["c"])
    assert (done.master, done.fenced, done.minions) == ("b", True, [])
    assert_left_alone(staging)


def test_a_promotion_neither_fences_nor_waits_for_another_history_at_the_masters_address(
    production: TestCluster, staging: TestCluster, servers: list[MariaDB]
) -> None:
    a, b, c, theirs = servers
    a.kill()
    with configured(a=theirs, b=b, c=c) as mixed:
        done = promote(mixed)
    assert done.master in ("b", "c")
    assert not done.fenced
    assert_left_alone(staging)


def test_a_promotion_that_is_finished_points_no_server_of_another_history_to_its_master(
    production: TestCluster, staging: TestCluster, servers: list[MariaDB]
) -> None:
    a, b, _, theirs = servers
    make_read_only(production.admin.server("a"))  # as a promotion that was killed leaves it
    with configured(a=a, b=b, c=theirs) as mixed:
        done = promote(mixed)
    assert done.master == "a"
    assert_left_alone(staging)
    assert not is_read_only(production.admin.server("a"))


def test_a_supervisor_leaves_a_server_of_another_history_alone(
    production: TestCluster, staging: TestCluster, servers: list[MariaDB]
) -> None:
    """It fenced staging's master, and cut off its clients, every few seconds."""
    a, b, _, theirs = servers
    with configured(a=a, b=b, c=theirs) as mixed:
        supervisor = FailoverSupervisor(mixed)
        for _ in range(3):
            assert supervisor.look() is None
        supervisor.close()
    assert_left_alone(staging)


def assert_left_alone(staging: TestCluster) -> None:
    server = staging.admin.server("a")
    assert not is_read_only(server)
    assert minion_status(server) is None
    role, _ = cluster_role(staging.admin)
    assert (role.master, role.epoch) == ("a", 0)


@pytest.mark.parametrize("read_from", [Replica.MINION, Replica.MASTER])
def test_no_cell_is_read_from_a_server_of_another_history_at_a_nodes_address(
    production: TestCluster,
    staging: TestCluster,
    servers: list[MariaDB],
    monkeypatch: pytest.MonkeyPatch,
    read_from: Replica,
) -> None:
    """Before the node is looked at next."""
    monkeypatch.setattr(node, "_IDLE_LOOK_S", 30.0)
    proxies = [TcpProxy(server.port, mysql=True) for server in servers[:2]]
    nodes = {
        name: node_opener(f"mysql://root@127.0.0.1:{proxy.port}")
        for name, proxy in zip("ab", proxies, strict=True)
    }
    swapped = proxies[read_from is Replica.MINION]
    right = {cell.body_json for cell in OURS}
    with closing(ClusteredEngine(DATASTORE, SHARDS, {"c1": nodes}, read_first=read_from)) as engine:
        eventually(lambda: shown(engine) == len(OURS), "it is shown")
        assert bodies(engine, OURS, read_from) == right
        ranges = [LogRange(shard, 0, 100) for shard in range(SHARDS)]
        logs = engine.scan_many(ranges)
        swapped.target_port = servers[3].port
        swapped.cut()
        for _ in range(3):
            try:
                assert bodies(engine, OURS, read_from) <= right
                assert engine.scan_many(ranges) == logs
                assert [engine.scan(shard, 0, 100) for shard in range(SHARDS)] == logs
            except Unavailable:
                continue
        assert swapped.connections > 2, "it was asked"
        swapped.target_port = servers[read_from is Replica.MINION].port
        swapped.cut()
        eventually(lambda: bodies(engine, OURS, read_from) == right, "it is back")
    for proxy in proxies:
        proxy.close()


def test_a_second_cluster_of_another_history_that_was_away_takes_no_put(
    servers: list[MariaDB],
) -> None:
    """It was away when the process began, and came back as staging's."""
    divided = even_map(DATASTORE, SHARDS, ["c1", "c2"])
    made = [
        make_cluster("c1", servers[:1], divided),
        make_cluster("c2", servers[1:2], divided),
        make_cluster("c2", servers[3:], even_map(DATASTORE, SHARDS, ["c1", "c2"])),
    ]
    proxy = TcpProxy(servers[1].port, mysql=True)
    nodes = {
        "c1": {"a": node_opener(servers[0].url)},
        "c2": {"a": node_opener(f"mysql://root@127.0.0.1:{proxy.port}")},
    }
    [cell] = cells_of_shard(SHARDS - 1, 1, 1)
    try:
        proxy.down()
        with closing(ClusteredEngine(DATASTORE, SHARDS, nodes)) as engine:
            proxy.target_port = servers[3].port
            proxy.up()
            deadline_s = time.monotonic() + 10
            while str(history_of(made[2])) not in str(refused := refusal(engine, cell)):
                assert time.monotonic() < deadline_s, refused
                time.sleep(0.1)
            assert servers[3].sql(f"SELECT COUNT(*) FROM trips_{SHARDS - 1:04d}.cell") == [(0,)]
            proxy.target_port = servers[1].port
            proxy.cut()
            put_until_stored(engine, [cell])
    finally:
        proxy.close()
        for each in made:
            each.admin.close()
            each.bare()


def refusal(engine: ClusteredEngine, cell: NewCell) -> CellfeedError:
    with pytest.raises(CellfeedError) as refused:
        engine.put([cell])
    return refused.value


def test_a_server_of_another_cluster_of_the_datastore_is_neither_taken_in_nor_fenced(
    servers: list[MariaDB],
) -> None:
    divided = even_map(DATASTORE, SHARDS, ["c1", "c2"])
    made = [make_cluster("c1", servers[:2], divided), make_cluster("c2", servers[2:3], divided)]
    try:
        with configured(a=servers[0], b=servers[1], c=servers[2]) as mixed:
            with pytest.raises(ProtectData, match=r"cluster 'c2'.*Nothing was done"):
                follow_again(mixed, "c")
            assert promote(mixed).master == "b"
        assert not is_read_only(made[1].admin.server("a")), "c2 takes writes"
    finally:
        for each in made:
            each.admin.close()
            each.bare()
