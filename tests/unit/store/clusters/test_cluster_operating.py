"""Steps of an operator on a cluster whose servers are values: a change of the mode of replication,
promises of an epoch, the cells that a node has alone, and how old the lag is."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cellfeed.store.cells.cell import ERASED_COLUMN, NewCell, StoredCell
from cellfeed.store.clusters.model import promises
from cellfeed.store.clusters.model.promises import promise, promised_epoch, refuse_promised
from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.operating import (
    never_replicated,
    present_role,
    replication_mode,
)
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.node import StorageNode
from cellfeed.store.clusters.serving.node_view import NodeView
from cellfeed.store.clusters.serving.status import AGED_SHARDS_MAX, cluster_status
from cellfeed.store.errors import StorageUnavailable
from tests.support.rides import rides
from tests.support.stand_in_nodes import Node, head

ROLE = Role("c1", "a", 4, ["b", "c"], semi_sync=True, history_id="h")


class Servers:
    """Nodes a, b, c and d by name. ``promised``: the epochs that they remember; ``away``: nodes
    that fail."""

    name, datastore, promised = "c1", "trips", "trips_promised"
    semi_sync = False

    def __init__(self) -> None:
        self.done: list[str] = []
        self.servers = {name: SimpleNamespace(name=name, drop_idle=lambda: None) for name in "abcd"}
        self.remembered = dict.fromkeys("abcd", -1)
        self.away: set[str] = set()

    def with_timeout(self, timeout_s: float) -> Servers:
        return self

    def server(self, name: str) -> Any:
        return self.servers[name]

    def close(self) -> None: ...

    def write_promise(self, server: Any, _: str, history_id: str, epoch: int) -> None:
        self._ask(server)
        self.remembered[server.name] = epoch

    def read_promise(self, server: Any, _: str, history_id: str) -> int:
        self._ask(server)
        return self.remembered[server.name]

    def _ask(self, server: Any) -> None:
        if server.name in self.away:
            raise StorageUnavailable(f"{server.name} is away")


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    servers = Servers()
    monkeypatch.setattr(promises, "write_promise", servers.write_promise)
    monkeypatch.setattr(promises, "read_promise", servers.read_promise)
    return servers


def as_cluster(servers: Servers) -> ClusterServers:
    return cast("ClusterServers", cast("Any", servers))


def test_half_of_the_nodes_cannot_promise_an_epoch(servers: Servers) -> None:
    servers.away = {"c", "d"}
    with pytest.raises(StorageUnavailable, match="only a, b can remember epoch 5"):
        promise(as_cluster(servers), ROLE, 5)
    servers.away = {"d"}
    promise(as_cluster(servers), ROLE, 6)


def test_the_highest_promise_of_the_nodes_that_answer_counts(servers: Servers) -> None:
    servers.remembered |= {"b": 7, "c": 9}
    assert promised_epoch(as_cluster(servers), "h") == 9
    assert promised_epoch(as_cluster(servers), "h", {"c"}) == 7
    servers.away = {"c"}
    assert promised_epoch(as_cluster(servers), "h") == 7


def test_a_role_is_refused_below_a_promise_and_taken_at_it(servers: Servers) -> None:
    servers.remembered["b"] = ROLE.epoch
    refuse_promised(as_cluster(servers), ROLE)
    servers.remembered["b"] = ROLE.epoch + 1
    with pytest.raises(StorageUnavailable, match=f"epoch {ROLE.epoch + 1} began"):
        refuse_promised(as_cluster(servers), ROLE)


def test_a_master_whose_mode_cannot_change_takes_writes_again(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def locked(*_: object) -> Any:
        yield ROLE

    def note(what: str) -> Any:
        return lambda *_, **__: servers.done.append(what)

    for name, stand_in in {
        "minority": lambda _: {},
        "locked_role": locked,
        "takes_writes": lambda *_: True,
        "next_epoch": lambda *_: 5,
        "make_read_only": note("fenced"),
        "open_for_writes": note("opened"),
        "raise_epoch": note("raised"),
        "set_semi_sync": note("mode"),
    }.items():
        monkeypatch.setattr(replication_mode, name, stand_in)
    servers.away = {"b", "c", "d"}
    with pytest.raises(StorageUnavailable, match="a majority is needed"):
        replication_mode.follow_configuration(as_cluster(servers))
    assert servers.done == ["fenced", "opened"]


def test_cells_of_a_row_that_the_node_has_erased_are_not_listed_for_another_put(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    [gone, stays] = rides(0, 2)

    def stored(added_id: int, cell: NewCell, column: str = "BASE") -> StoredCell:
        return StoredCell(added_id, cell.row_key, column, 1, 0, b"\x01{}")

    found = [
        (0, stored(5, gone)),
        (0, stored(6, stays)),
        (0, stored(7, gone, ERASED_COLUMN)),
        (1, stored(3, stays)),
    ]
    monkeypatch.setattr(never_replicated, "position", lambda _: "0-1-9")
    monkeypatch.setattr(never_replicated, "extra_cells", lambda *_: iter(found))
    monkeypatch.setattr(never_replicated, "extra_buffered", lambda *_: [gone, stays])
    monkeypatch.setattr(never_replicated, "decode_body", lambda _: b"{}")
    listed = never_replicated.never_replicated(as_cluster(servers), "a", ROLE)
    assert [cell.row_key for cell in listed.cells] == [stays.row_key] * 2
    assert listed.buffered == [stays]
    assert listed.erased == [gone.row_key]
    assert listed.begins == {0: 5, 1: 3}
    assert not listed.nothing


class Engine:
    """The master's: the cell at id n of shard n was written n seconds after the beginning."""

    def __init__(self) -> None:
        self.name, self.state = "a", SimpleNamespace(now_us=lambda: 1_000_000_000)
        self.scanned: list[int] = []

    def memory_advice(self) -> None:
        return None

    def scan(self, shard: int, location: int, limit: int) -> list[StoredCell]:
        self.scanned.append(shard)
        return [StoredCell(location, b"", "BASE", 1, shard * 1_000_000, b"")]


def lagging(shards: int) -> tuple[Cluster, dict[str, Node], Engine]:
    """A cluster whose minions lack ``shard`` + 1 cells of each shard."""
    nodes, engine = {name: Node(name) for name in "abc"}, Engine()
    made = Cluster(
        "c1", [cast("StorageNode", node) for node in nodes.values()], list(range(shards))
    )
    role = Role("c1", "a", 1, ["b", "c"])
    for name, node in nodes.items():
        node.engine = engine
        node.says(0, role)
        held = {s: head(1_000 if name == "a" else 999 - s) for s in range(shards)}
        node.view = NodeView(role, held)
    return made, nodes, engine


def test_the_lag_is_as_old_as_the_oldest_cell_of_the_shards_that_are_most_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        Node, "call", lambda node, what, timeout_s=1.0: what(node.engine or node.name)
    )
    shards = AGED_SHARDS_MAX + 10
    cluster, nodes, engine = lagging(shards)
    status = cluster_status(cluster)
    assert (status.lag_cells, status.lag_cells_max) == (sum(range(shards + 1)), shards)
    assert sorted(engine.scanned) == list(range(10, shards))
    assert status.lag_s == 990
    nodes["a"].why_not = "away"
    status = cluster_status(cluster)
    assert (status.lag_cells, status.lag_cells_max, status.lag_s) == (None, None, None)


def test_the_role_under_the_lock_is_that_of_the_last_promotion(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came between the look for the nodes to lock and the lock."""
    role = ROLE
    monkeypatch.setattr(present_role, "cluster_role", lambda _: (role, {}))

    @contextmanager
    def locked(*_: object) -> Any:
        nonlocal role
        role = ROLE.promoted("b", ["c"], "0-1-9", ROLE.epoch + 1)
        yield

    monkeypatch.setattr(present_role, "promotion_lock", locked)
    cluster = as_cluster(servers)
    with present_role.locked_role(cluster, cluster) as found:
        assert (found.epoch, found.master) == (ROLE.epoch + 1, "b")
