"""The status of a cluster: each node's role, cells and delay by its last report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.node import StorageNode
from cellfeed.store.clusters.serving.node_view import NodeView
from cellfeed.store.clusters.serving.status import NodeRole, NodeStatus, cluster_status
from tests.support.stand_in_nodes import Node, head


@pytest.fixture(autouse=True)
def engines(nodes: dict[str, Node]) -> None:
    """The cell that no minion holds is two seconds old; b's operator has a hint."""
    for name, node in nodes.items():
        node.engine = SimpleNamespace(
            memory_advice={"b": "more memory"}.get(name, "").__str__,
            scan=lambda *_: [SimpleNamespace(created_at_us=7_000_000)],
            state=SimpleNamespace(now_us=lambda: 9_000_000),
        )


def status(name: str, role: NodeRole, **more: Any) -> NodeStatus:
    values: dict[str, Any] = {
        "up": True,
        "breaker": "closed",
        "behind": 0,
        "error": None,
        "advice": "",
    }
    return NodeStatus(name, role, **{**values, **more})


def test_each_node_has_its_role_its_cells_and_its_delay(
    cluster: Cluster, nodes: dict[str, Node]
) -> None:
    nodes["b"].says(9, log_start=2)
    nodes["c"].view = NodeView(Role("c1", "b", 0, ["c"]), {0: head(7)})
    nodes["c"].damaged = "a body"
    found = cluster_status(cluster)
    assert found.nodes == [
        status("a", NodeRole.MASTER, cells=10),
        status("b", NodeRole.MINION, cells=7, behind=1, advice="more memory"),
        status("c", NodeRole.APART, cells=7, behind=3, error="a body"),
    ]
    assert (found.master, found.epoch, found.watermark, found.error) == ("a", 1, 9, None)
    assert (found.lag_cells, found.lag_cells_max, found.lag_s) == (1, 1, 2.0)


def test_a_node_that_is_away_keeps_the_counts_of_its_last_report(
    cluster: Cluster, nodes: dict[str, Node]
) -> None:
    nodes["b"].why_not = "it does not answer"
    nodes["b"].breaker.failed()
    [_, away, _] = cluster_status(cluster).nodes
    assert (away.role, away.cells, away.behind) == (NodeRole.MINION, 9, 1)
    assert (away.up, away.error, away.advice) == (False, "it does not answer", None)


def test_of_a_cluster_that_nobody_reports_on_every_node_is_apart() -> None:
    silent = [Node(name) for name in "ab"]
    for node in silent:
        node.why_not = "it does not answer"
    found = cluster_status(Cluster("c1", [cast("StorageNode", node) for node in silent], [0]))
    assert [(each.role, each.up, each.cells, each.behind) for each in found.nodes] == [
        (NodeRole.APART, False, 0, 0)
    ] * 2
    assert (found.master, found.epoch, found.watermark, found.lag_cells) == ("", -1, 0, None)
    assert found.error is not None
