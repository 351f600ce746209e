"""The state table of a datastore over clusters: the one of its first cluster."""

from __future__ import annotations

from collections.abc import Mapping

from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.node_engine import READ_TIMEOUT_S
from cellfeed.store.engines.contract.values import StateEntry


class ClusterState:
    """The state table of a cluster, on its master: leases and offsets must be read where they are
    written, so not of an old master either."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def get(self, key: str) -> StateEntry | None:
        return self._cluster.ask_master(lambda engine: engine.state.get(key))

    def list(self, prefix: str) -> list[StateEntry]:
        return self._cluster.ask_master(lambda engine: engine.state.list(prefix))

    def commit(
        self, write: Mapping[str, bytes | None], expect: Mapping[str, int | None] | None = None
    ) -> int | None:
        return self._cluster.write(
            lambda engine, role: engine.state.commit(write, expect, role.terms)
        )

    def now_us(self) -> int:
        return self._cluster.write(lambda engine, _: engine.state.now_us(), READ_TIMEOUT_S)
