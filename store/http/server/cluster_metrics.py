"""How the clusters stand, as Prometheus gauges that are worked out when somebody asks.
``docs/clusters.md`` lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.clusters.serving.status import ClusterStatus, NodeRole, NodeStatus

_OF_A_CLUSTER: Final[Sequence[tuple[str, str, Callable[[ClusterStatus], float | None]]]] = (
    (
        "leader_epoch",
        "The leader epoch of the cluster's present master; absent while no node reports it.",
        lambda each: each.epoch if each.master else None,
    ),
    (
        "watermark_lag_cells",
        "Cells committed that no minion holds yet; absent while the master does not report it.",
        lambda each: each.lag_cells,
    ),
    (
        "watermark_lag_cells_max",
        "The same of the one shard that has most of them.",
        lambda each: each.lag_cells_max,
    ),
    (
        "watermark_lag_seconds",
        "Age of the oldest cell that no minion holds yet; 0 without one.",
        lambda each: each.lag_s,
    ),
)
_OF_A_NODE: Final[Sequence[tuple[str, str, Callable[[NodeStatus], float]]]] = (
    (
        "node_up",
        "Whether the storage node answered when it was last looked at.",
        lambda each: each.up,
    ),
    (
        "node_breaker_open",
        "Whether the node's circuit breaker is open: it is left alone for a moment.",
        lambda each: each.breaker == "open",
    ),
    (
        "node_behind_cells",
        "Cells that it had fewer than the node that held most, when it last reported.",
        lambda each: each.behind,
    ),
)


class ClusterMetrics(Collector):
    """Label values are names of the configuration and roles, so nobody outside can make new
    series."""

    def __init__(self, engine: ClusteredEngine) -> None:
        self._engine = engine

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The gauges without figures: registering them asks no storage node."""
        return self._gauges([])

    def collect(self) -> Iterable[GaugeMetricFamily]:
        return self._gauges(self._engine.status())

    def _gauges(self, clusters: Sequence[ClusterStatus]) -> Iterable[GaugeMetricFamily]:
        for name, says, of_cluster in _OF_A_CLUSTER:
            gauge = GaugeMetricFamily(f"cellfeed_cluster_{name}", says, labels=["cluster"])
            for cluster in clusters:
                if (value := of_cluster(cluster)) is not None:
                    gauge.add_metric([cluster.name], value)
            yield gauge
        for name, says, of_node in _OF_A_NODE:
            gauge = GaugeMetricFamily(f"cellfeed_cluster_{name}", says, labels=["cluster", "node"])
            for cluster in clusters:
                for node in cluster.nodes:
                    gauge.add_metric([cluster.name, node.name], of_node(node))
            yield gauge
        gauge = GaugeMetricFamily(
            "cellfeed_cluster_node_role",
            "1 for the role that the node has: master, minion, or apart.",
            labels=["cluster", "node", "role"],
        )
        for cluster in clusters:
            for node in cluster.nodes:
                for role in NodeRole:
                    gauge.add_metric([cluster.name, node.name, role.value], node.role is role)
        yield gauge
