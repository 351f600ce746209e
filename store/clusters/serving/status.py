"""How a cluster stands: its master, the nodes that answer, and how far the watermark is behind the
committed cells. For metrics and for its operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.node import StorageNode
from cellfeed.store.errors import CellfeedError

AGED_SHARDS_MAX: Final = 64
"""Shards that are asked for their oldest cell that no minion has, those with most such cells: one
short read on the master each. Where more than these are behind at once the age is of the oldest
among them."""


class NodeRole(StrEnum):
    """``apart``: the node has not heard of the present master, or has never reported."""

    MASTER = "master"
    MINION = "minion"
    APART = "apart"


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """``up``: it answered when it was last looked at; ``error`` says why not, or which damage a
    read met in its tables. ``breaker``: ``open`` while it is left alone. ``cells``: the cells it
    held when it last reported; ``behind``: how many fewer than the node that held most. ``advice``:
    a hint to its operator about its memory."""

    name: str
    role: NodeRole
    up: bool
    breaker: str
    cells: int
    behind: int
    error: str | None
    advice: str | None


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """``lag_cells``: cells that the master has committed and no minion holds yet, over all shards;
    ``lag_cells_max``: of the one shard that has most; ``lag_s``: the age of the oldest of them in
    seconds by the master's clock, 0 when there is none. All three are None while the master does
    not report, and 0 in a cluster without minions. ``semi_sync``: a commit waits until a minion has
    received it. ``error``: why nothing is known of the cluster or of its lag, or why it takes no
    writes."""

    name: str
    epoch: int
    master: str
    semi_sync: bool
    shards: int
    watermark: int
    watermark_kind: str
    lag_cells: int | None
    lag_cells_max: int | None
    lag_s: float | None
    nodes: list[NodeStatus]
    error: str | None


def cluster_status(cluster: Cluster) -> ClusterStatus:
    """Looks at all nodes and says how things are; never raises for a cluster that is away."""
    cluster.look()
    role: Role | None = None
    watermark, lag, lag_s, error = 0, None, None, None
    try:
        role = cluster.role()
        watermark = sum(head.watermark for head in cluster.heads(fresh=False).values())
        master = cluster.node(role.master)
        lag = _lag(cluster, master)
        lag_s = _age_s(master, lag, cluster.replicated()) if lag is not None else None
        _ = role.terms
    except CellfeedError as problem:
        error = str(problem)
    return ClusterStatus(
        name=cluster.name,
        epoch=role.epoch if role else -1,
        master=role.master if role else "",
        semi_sync=role.semi_sync if role else False,
        shards=len(cluster.shards),
        watermark=watermark,
        watermark_kind=cluster.watermark.value,
        lag_cells=None if lag is None else sum(lag.values()),
        lag_cells_max=None if lag is None else max(lag.values(), default=0),
        lag_s=lag_s,
        nodes=_nodes(cluster, role),
        error=error,
    )


def _lag(cluster: Cluster, master: StorageNode) -> dict[int, int] | None:
    """Per shard that is behind, by how many cells; None while the master does not report its
    commits."""
    if master.why_not is not None or (view := master.view) is None:
        return None
    replicated = cluster.replicated()
    behind = {
        shard: view.heads[shard].next_added_id - replicated[shard]
        for shard in cluster.shards
        if shard in view.heads
    }
    return {shard: cells for shard, cells in behind.items() if cells > 0}


def _age_s(
    master: StorageNode, lag: Mapping[int, int], replicated: Mapping[int, int]
) -> float | None:
    most = sorted(lag, key=lambda shard: lag[shard], reverse=True)[:AGED_SHARDS_MAX]
    if not most:
        return 0.0
    try:
        oldest = master.call(
            lambda engine: [
                cell.created_at_us
                for shard in most
                for cell in engine.scan(shard, replicated[shard], 1)
            ]
        )
        now_us = master.call(lambda engine: engine.state.now_us())
    except CellfeedError:
        return None
    return max(0, now_us - min(oldest, default=now_us)) / 1e6


def _nodes(cluster: Cluster, role: Role | None) -> list[NodeStatus]:
    ends = {
        name: sum(head.next_added_id for head in node.view.heads.values()) if node.view else 0
        for name, node in cluster.nodes.items()
    }
    trimmed = {
        name: sum(head.log_start for head in node.view.heads.values()) if node.view else 0
        for name, node in cluster.nodes.items()
    }
    most = max(ends.values(), default=0)
    return [
        NodeStatus(
            name,
            _role_of(node, role),
            node.why_not is None,
            "open" if node.breaker.is_open else "closed",
            ends[name] - trimmed[name],
            most - ends[name],
            node.why_not or node.damaged,
            _advice(node),
        )
        for name, node in cluster.nodes.items()
    ]


def _advice(node: StorageNode) -> str | None:
    if node.why_not is not None:
        return None
    try:
        return node.call(lambda engine: engine.memory_advice())
    except CellfeedError:
        return None


def _role_of(node: StorageNode, role: Role | None) -> NodeRole:
    if role is not None and node.name == role.master:
        return NodeRole.MASTER
    view = node.view
    follows = (
        role is not None
        and view is not None
        and view.role is not None
        and view.role.epoch == role.epoch
    )
    return NodeRole.MINION if follows else NodeRole.APART
