"""The fences of indexes on a cluster, and reads that its master alone may answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.node_engine import NodeEngine
from cellfeed.store.errors import StorageUnavailable

T = TypeVar("T")


class FencedCluster:
    """:class:`cellfeed.store.engines.contract.index_fences.FencedStorage`: a raise counts when a
    minion has it, as entries do."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def fence_numbers(self, shards: Sequence[int]) -> dict[int, int]:
        return of_master(self._cluster, lambda engine: engine.indexes.fence_numbers(shards))

    def set_fences(self, numbers: Mapping[int, int]) -> None:
        self._cluster.write(lambda engine, role: engine.indexes.set_fences(numbers, role.terms))


def of_master(cluster: Cluster, read: Callable[[NodeEngine], T]) -> T:
    """A read that compares entries with cells must not take a minion that is behind for one that
    lacks something."""
    found, stale = cluster.read(read)
    if stale:
        raise StorageUnavailable(
            f"cluster {cluster.name}: its master is away or unconfirmed: its index may lack rows"
        )
    return found
