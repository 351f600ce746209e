"""Stored bodies over clusters, in another encoding (E27): each shard on the master that has it, and
a search of every node.

A shard that is copied for a move, or has moved, is waited for, and then asked where it is. The
copies that a cluster keeps of shards that have left it are searched as well: a move back would
bring those bodies to light again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.placement import Placement
from cellfeed.store.engines.contract.values import NamedBodies
from cellfeed.store.errors import Unavailable

SEARCH_TIMEOUT_S: Final = 60.0
"""Longest wait for one answer of a search, in seconds: a statement reads 100,000 cells."""

_log = logging.getLogger("cellfeed.clusters")


class ClusteredBodies:
    """See the module."""

    def __init__(self, clusters: Mapping[str, Cluster], placement: Placement) -> None:
        self._clusters = clusters
        self._placement = placement

    def settle_puts(self, shard: int) -> int:
        """E27."""
        return self._placement.retry_while_moving(
            lambda: self._placement.cluster_of(shard).write(
                lambda engine, role: engine.settle_puts(shard, role.terms)
            )
        )

    def named(self, shard: int, prefix: bytes, location: int, limit: int) -> NamedBodies:
        """The bodies on the shard's master."""
        return self._placement.retry_while_moving(
            lambda: self._placement.cluster_of(shard).write(
                lambda engine, _: engine.bodies_named(shard, prefix, location, limit)
            )
        )

    def replace(self, shard: int, cells: Sequence[tuple[StoredCell, bytes]]) -> int:
        """E27."""
        return self._placement.retry_while_moving(
            lambda: self._placement.cluster_of(shard).write(
                lambda engine, role: engine.replace_bodies(shard, cells, role.terms)
            )
        )

    def count(self, prefix: bytes) -> dict[str, int]:
        """How many stored bodies begin so on each node, by node and shard. Raises
        StorageUnavailable where a master does not answer. A minion that is away follows its
        master's log when it returns: it is named in the log, and left out."""
        found = dict[str, int]()
        for name, cluster in self._clusters.items():
            of_master = cluster.write(
                lambda engine, _: dict(engine.bodies_with(prefix)), SEARCH_TIMEOUT_S
            )
            master = cluster.role().master
            found |= {f"cluster {name}, node {master}, {at}": n for at, n in of_master.items()}
            for node in cluster.nodes.values():
                if node.name == master:
                    continue
                try:
                    of_node = node.call(lambda engine: engine.bodies_with(prefix), SEARCH_TIMEOUT_S)
                except Unavailable as error:
                    _log.warning("node %s was not searched: %s", node.name, error)
                    continue
                found |= {f"cluster {name}, node {node.name}, {at}": n for at, n in of_node.items()}
        return found
