"""The cells on several clusters that an index is made of, and the check whether rows of an answer
are the latest. A query reads the clusters side by side
(:mod:`cellfeed.store.clusters.serving.fan_out`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.sharding import shards_of
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.fan_out import FanOut
from cellfeed.store.clusters.serving.node_engine import NodeEngine
from cellfeed.store.clusters.serving.placement import Placement
from cellfeed.store.engines.contract.index_values import Current, Outdated, RowRefs, RowsBelow
from cellfeed.store.engines.contract.values import LocatedCell, Replica
from cellfeed.store.errors import StorageUnavailable

_LOOKS: Final = 5
_PAUSE_S: Final = 0.01
"""A node that lacks cells which another one has shown has them in a moment: it is asked again, so
many times."""

K = TypeVar("K")


class ClusteredIndexCells:
    """``placement``: where the shards are. Each call raises ShardMoving while one of them moves."""

    def __init__(self, placement: Placement, fan_out: FanOut) -> None:
        self._placement = placement
        self._fan_out = fan_out

    def latest_before(self, rows: Sequence[RowsBelow], columns: Sequence[str]) -> list[StoredCell]:
        found: list[StoredCell] = []
        for cluster, by_shard in by_cluster(
            self._placement, {each.shard: each for each in rows}
        ).items():
            some = list(by_shard.values())
            there = {each.shard: each.location for each in some}
            found += _once_there(
                cluster,
                there,
                lambda engine, some=some: engine.indexes.latest_before_or_none(some, columns),  # type: ignore[misc]
            )
        return found

    def between(
        self, shard: int, columns: Sequence[str], location: int, end: int, fence: int
    ) -> list[StoredCell]:
        def read(engine: NodeEngine) -> list[StoredCell] | None:
            return engine.indexes.cells_between_or_none(shard, columns, location, end, fence)

        return _once_there(self._placement.cluster_of(shard), {shard: end}, read)

    def outdated(
        self, rows: Sequence[RowRefs], columns: Sequence[str], read_from: Replica
    ) -> Outdated:
        groups: dict[Cluster, list[tuple[RowRefs, int]]] = {}
        for row, shard in zip(
            rows,
            shards_of([row_key for row_key, _ in rows], self._placement.map.shards),
            strict=True,
        ):
            groups.setdefault(self._placement.cluster_of(shard), []).append((row, shard))

        def read(cluster: Cluster, members: list[tuple[RowRefs, int]]) -> tuple[Outdated, bool]:
            some, shards = [row for row, _ in members], [shard for _, shard in members]
            return cluster.read(
                lambda engine: engine.indexes.outdated(some, columns, shards=shards), read_from
            )

        found: set[bytes] = set()
        any_stale = False
        for outdated, stale in self._fan_out.each(groups, read):
            found |= outdated.row_keys
            any_stale |= stale
        return Outdated(found, any_stale)

    def current(
        self,
        row_keys: Mapping[int, Sequence[bytes]],
        columns: Sequence[str] | None,
        read_from: Replica,
    ) -> Current:
        def read(cluster: Cluster, some: dict[int, Sequence[bytes]]) -> tuple[Current, bool]:
            return cluster.read(lambda engine: engine.indexes.current(some, columns), read_from)

        found: dict[bytes, list[LocatedCell]] = {}
        any_stale = False
        for (cells, _), stale in self._fan_out.each(by_cluster(self._placement, row_keys), read):
            any_stale |= stale
            found.update(
                {
                    row_key: [each._replace(stale=True) for each in row]
                    for row_key, row in cells.items()
                }
                if stale
                else cells
            )
        return Current(found, any_stale)


def by_cluster(placement: Placement, by_shard: Mapping[int, K]) -> dict[Cluster, dict[int, K]]:
    """The same by the clusters that the shards are on."""
    groups: dict[Cluster, dict[int, K]] = {}
    for shard, each in by_shard.items():
        groups.setdefault(placement.cluster_of(shard), {})[shard] = each
    return groups


def _once_there(
    cluster: Cluster,
    locations: Mapping[int, int],
    read: Callable[[NodeEngine], list[StoredCell] | None],
) -> list[StoredCell]:
    """The cells from the first node that has the logs up to these locations, by shard."""
    for look in range(_LOOKS):
        time.sleep(_PAUSE_S * look)
        # A minion may show cells that its master does not show yet, so the master is not asked
        # alone.
        for first in Replica:
            found, _ = cluster.read(read, first, _is_there, lasting=_is_there)
            if found is not None:
                return found
    raise StorageUnavailable(
        f"cluster {cluster.name}: no node that can be read just now has the logs up to these"
        f" locations, by shard: {dict(locations)}"
    )


def _is_there(found: list[StoredCell] | None) -> bool:
    return found is not None
