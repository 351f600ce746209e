"""Reads of shards' logs over clusters, up to each shard's watermark.

A cell that a node has shown is found on every node some milliseconds later, so all of them are
asked for it, several times. Cells beyond the watermark are never shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.sharding import check_shard
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.key_reads import all_found
from cellfeed.store.clusters.serving.node_engine import NodeEngine
from cellfeed.store.clusters.serving.placement import Placement
from cellfeed.store.engines.contract.values import (
    Head,
    HeadChanges,
    LogRange,
    Replica,
)
from cellfeed.store.errors import StorageUnavailable

_LOOKS: Final = 5
_PAUSE_S: Final = 0.002
"""All nodes are asked so many times for cells that one of them has shown, a little later each time:
the others have them in some milliseconds."""

T = TypeVar("T")


class _Mark(NamedTuple):
    """A look at all clusters: where each shard was, and the last change of each cluster's heads."""

    by_shard: Sequence[str]
    changes: Mapping[str, int]


class ClusteredLogReads:
    """See the module. ``read_first``: where reads of logs go first."""

    def __init__(
        self,
        clusters: Mapping[str, Cluster],
        placement: Placement,
        shards: int,
        read_first: Replica,
    ) -> None:
        self._clusters = clusters
        self._placement, self._shards = placement, shards
        self._read_first = read_first

    def scan(self, shard: int, location: int, limit: int) -> list[StoredCell]:
        check_shard(shard, self._shards)
        return self._placement.retry_while_moving(lambda: self._scan(shard, location, limit))

    def _scan(self, shard: int, location: int, limit: int) -> list[StoredCell]:
        watermark = self._placement.cluster_of(shard).shown(shard)
        if location >= watermark:
            # The cells that were shown before are enough: a caller that wants newer ones asks for
            # the heads, or reads on.
            watermark = self._head(shard).watermark
        cluster = self._placement.cluster_of(shard)
        count = min(limit, watermark - location)
        if count <= 0:
            return []
        cells = self._read_shown(cluster, lambda engine: engine.scan(shard, location, count), bool)
        return _there(cluster, [LogRange(shard, location, count)], [_shown(cells, watermark)])[0]

    def scan_many(self, ranges: Sequence[LogRange]) -> list[list[StoredCell]]:
        for each in ranges:
            check_shard(each.shard, self._shards)
        return self._placement.retry_while_moving(lambda: self._scan_many(ranges))

    def _scan_many(self, ranges: Sequence[LogRange]) -> list[list[StoredCell]]:
        found: list[list[StoredCell]] = [[] for _ in ranges]
        by_cluster: dict[Cluster, list[tuple[int, LogRange]]] = {}
        for index, each in enumerate(ranges):
            by_cluster.setdefault(self._placement.cluster_of(each.shard), []).append((index, each))
        for cluster, members in by_cluster.items():
            if any(each.location >= cluster.shown(each.shard) for _, each in members):
                self._update(cluster)
            shown = [
                (
                    index,
                    each._replace(limit=min(each.limit, cluster.shown(each.shard) - each.location)),
                )
                for index, each in members
            ]
            some = [(index, each) for index, each in shown if each.limit > 0]
            if not some:
                continue
            wanted = [each for _, each in some]
            cells = self._read_shown(
                cluster,
                lambda engine, wanted=wanted: engine.scan_many(wanted),  # type: ignore[misc, misc]
                all_found,
            )
            below = [
                _shown(piece, cluster.shown(each.shard))
                for each, piece in zip(wanted, cells, strict=True)
            ]
            for (index, _), there in zip(some, _there(cluster, wanted, below), strict=True):
                found[index] = there
        return found

    def superseded(
        self, shard: int, start: int, end: int, log_start: int, watermark: int
    ) -> set[int]:
        check_shard(shard, self._shards)

        # A node that is behind, or an old master, knows of fewer newer cells and names fewer. Its
        # cells beyond the watermark do not count, so none is named in error.
        def ask(engine: NodeEngine) -> set[int]:
            return engine.superseded(shard, start, end, log_start, watermark)

        found, _ = self._placement.retry_while_moving(
            lambda: self._placement.cluster_of(shard).read(ask, self._read_first, lasting=_always)
        )
        return found

    def locate(self, shard: int, created_at_us: int) -> int:
        check_shard(shard, self._shards)
        watermark = self._head(shard).watermark
        found, _ = self._placement.retry_while_moving(
            lambda: self._placement.cluster_of(shard).read(
                lambda engine: engine.locate(shard, created_at_us)
            )
        )
        return min(found, watermark)

    def heads(self, shards: Sequence[int] | None = None) -> dict[int, Head]:
        if shards is None:
            return self.heads_since(None).heads
        wanted = [check_shard(shard, self._shards) for shard in shards]
        heads: dict[int, Head] = {}
        # A shard that changes its cluster between two looks is looked for once more.
        while left := [shard for shard in wanted if shard not in heads]:
            by_cluster: dict[Cluster, list[int]] = {}
            for shard in left:
                by_cluster.setdefault(self._placement.cluster_of(shard), []).append(shard)
            for cluster, members in by_cluster.items():
                self._update(cluster)
                for shard in members:
                    head = cluster.head(shard)
                    if head is not None and self._placement.name_of(shard) == cluster.name:
                        heads[shard] = head
        return {shard: heads[shard] for shard in wanted}

    def heads_since(self, mark: object | None) -> HeadChanges:
        """As the contract's: the changed heads of each cluster. After a move all heads are
        given."""
        by_shard = self._placement.by_shard()
        before = mark.changes if isinstance(mark, _Mark) and mark.by_shard is by_shard else {}
        heads: dict[int, Head] = {}
        changes: dict[str, int] = {}
        for cluster in self._placement.serving():
            self._update(cluster)
            found, changes[cluster.name] = cluster.heads_since(
                before.get(cluster.name, 0), fresh=False
            )
            heads.update(
                (shard, head)
                for shard, head in found.items()
                if self._placement.name_of(shard) == cluster.name
            )
        if self._placement.by_shard() is not by_shard or (not before and len(heads) < self._shards):
            # A shard has moved meanwhile, so nobody may have been asked about it.
            return self.heads_since(None)
        return HeadChanges(heads, _Mark(by_shard, changes))

    def change_token(self) -> int:
        """How often the heads of all clusters have changed, as this process saw it."""
        for cluster in self._placement.serving():
            self._update(cluster)
        return sum(cluster.changes for cluster in self._clusters.values())

    def acknowledged_ends(self) -> dict[int, tuple[int, int]]:
        ends: dict[int, tuple[int, int]] = {}
        for name, cluster in self._clusters.items():
            known = cluster.acknowledged_ends()
            ends |= {
                shard: end for shard, end in known.items() if self._placement.name_of(shard) == name
            }
        return ends

    def _head(self, shard: int) -> Head:
        return self.heads([shard])[shard]

    def _update(self, cluster: Cluster) -> None:
        cluster.update()
        if cluster.lacks():
            self._placement.refresh()

    def _read_shown(
        self, cluster: Cluster, read: Callable[[NodeEngine], T], enough: Callable[[T], bool]
    ) -> T:
        """Reads from a node that has the cells that were shown. One that is behind gives none of
        them: the next one is asked then, and all of them again."""
        for look in range(_LOOKS):
            time.sleep(_PAUSE_S * look)
            found, _ = cluster.read(read, self._read_first, enough, shown=True)
            if enough(found):
                break
        return found


def _shown(cells: list[StoredCell], watermark: int) -> list[StoredCell]:
    """The cells below the watermark: where a restore left ids out, a read of as many cells as ids
    may reach beyond it."""
    return (
        cells
        if not cells or cells[-1].added_id < watermark
        else [cell for cell in cells if cell.added_id < watermark]
    )


def _there(
    cluster: Cluster, ranges: Sequence[LogRange], found: list[list[StoredCell]]
) -> list[list[StoredCell]]:
    """The cells found, if there are any of each range: all of them lie below the watermark, and
    "nothing" from a node that is behind would be read as a hole in the log (I7). Raises
    StorageUnavailable."""
    for each, cells in zip(ranges, found, strict=True):
        if not cells:
            raise StorageUnavailable(
                f"cluster {cluster.name}: no node that can be read just now has shard {each.shard}"
                f" from {each.location} on, which was shown"
            )
    return found


def _always(_: object) -> bool:
    return True
