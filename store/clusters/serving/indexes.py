"""Index tables over clusters: an entry lies on the cluster of its shard, cells on that of theirs.
Promises X1–X6 of :mod:`cellfeed.store.engines.contract.indexes`.

Writes go to the shard's master, under the leader epoch of the role that this process believes. They
count when a minion has them, as puts do; so a promotion loses none that a location was saved
behind. Reads of entries continue from a minion while the master is away. A query reads several
clusters side by side (:mod:`cellfeed.store.clusters.serving.fan_out`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.fan_out import FanOut
from cellfeed.store.clusters.serving.fenced_cluster import FencedCluster, of_master
from cellfeed.store.clusters.serving.index_cells import ClusteredIndexCells, by_cluster
from cellfeed.store.clusters.serving.node_engine import WRITE_TIMEOUT_S
from cellfeed.store.clusters.serving.placement import Placement
from cellfeed.store.engines.contract.index_fences import Fences
from cellfeed.store.engines.contract.index_values import (
    NOTHING,
    UNFENCED,
    Current,
    Encoded,
    Entry,
    EntrySelect,
    IndexTable,
    Outdated,
    RowRefs,
    RowsBelow,
    Selected,
)
from cellfeed.store.engines.contract.indexes import NodeIndexStore
from cellfeed.store.engines.contract.values import Replica, WriteTerms
from cellfeed.store.errors import ShardMoving


class ClusteredIndexes:
    """:class:`cellfeed.store.engines.contract.indexes.IndexStore`. ``placement``: where the shards
    are. A call waits for a shard that moves."""

    beside_ends: Final = None
    """Entries, logs and state may be on several clusters."""

    def __init__(self, clusters: Sequence[Cluster], placement: Placement, fan_out: FanOut) -> None:
        self._clusters = clusters
        self._fan_out = fan_out
        self._cells = ClusteredIndexCells(placement, fan_out)
        self._placement = placement
        self._cluster_of = placement.cluster_of
        self._fences = Fences([FencedCluster(cluster) for cluster in clusters])

    def create(self, table: IndexTable) -> frozenset[int]:
        return self._everywhere(
            lambda indexes, terms: indexes.create(table, terms), f"has no table {table.name} yet"
        )

    def complete(self, table: IndexTable) -> None:
        """Nothing, as on every node (:class:`cellfeed.store.engines.mysql.index_tables`)."""

    def drop(self, table: IndexTable) -> frozenset[int]:
        return self._everywhere(
            lambda indexes, terms: indexes.drop(table, terms), f"has its table {table.name} still"
        )

    def _everywhere(
        self, act: Callable[[NodeIndexStore, WriteTerms], frozenset[int]], otherwise: str
    ) -> frozenset[int]:
        """On every shard. One that is behind the fence of a move is served nowhere, and its tables
        have other names: it is waited for, or the move would take it along as it was."""

        def once() -> frozenset[int]:
            done = frozenset(
                shard
                for cluster in self._clusters
                for shard in cluster.write(
                    lambda engine, role: act(engine.indexes, role.terms), WRITE_TIMEOUT_S
                )
            )
            if lacking := set(range(self._placement.map.shards)) - done:
                raise ShardMoving(
                    f"shard {min(lacking)} {otherwise}: it moves to another cluster, or is on one"
                    " that this process does not know; try again"
                )
            return done

        return self._placement.retry_while_moving(once)

    def fences(self, shards: Sequence[int]) -> dict[int, int]:
        return self._fences.read(shards)

    def raise_fences(self, shards: Sequence[int]) -> dict[int, int]:
        return self._fences.raise_(shards)

    def apply(
        self,
        table: IndexTable,
        entries: Mapping[int, Sequence[Entry]],
        fences: Mapping[int, int] = UNFENCED,
    ) -> None:
        return self._placement.retry_while_moving(lambda: self._apply(table, entries, fences))

    def _apply(
        self, table: IndexTable, entries: Mapping[int, Sequence[Entry]], fences: Mapping[int, int]
    ) -> None:
        for cluster, some in by_cluster(self._placement, entries).items():
            cluster.write(
                lambda engine, role, some=some: engine.indexes.apply(  # type: ignore[misc]
                    table, some, fences, role.terms
                )
            )

    def remove(
        self,
        table: IndexTable,
        entries: Mapping[int, Sequence[Entry]],
        fences: Mapping[int, int] = UNFENCED,
        instead: Mapping[int, Sequence[Entry]] = NOTHING,
    ) -> None:
        return self._placement.retry_while_moving(
            lambda: self._remove(table, entries, fences, instead)
        )

    def _remove(
        self,
        table: IndexTable,
        entries: Mapping[int, Sequence[Entry]],
        fences: Mapping[int, int],
        instead: Mapping[int, Sequence[Entry]],
    ) -> None:
        for cluster, some in by_cluster(self._placement, entries).items():
            put = {shard: instead[shard] for shard in some if shard in instead}
            cluster.write(
                lambda engine, role, some=some, put=put: engine.indexes.remove(  # type: ignore[misc]
                    table, some, fences, put, role.terms
                )
            )

    def select(
        self, table: IndexTable, wanted: Sequence[EntrySelect], read_from: Replica = Replica.MASTER
    ) -> Selected:
        return self._placement.retry_while_moving(lambda: self._select(table, wanted, read_from))

    def _select(
        self, table: IndexTable, wanted: Sequence[EntrySelect], read_from: Replica
    ) -> Selected:
        found: dict[int, list[Entry]] = {}
        groups: dict[Cluster, list[tuple[int, EntrySelect]]] = {}
        for number, each in enumerate(wanted):
            groups.setdefault(self._cluster_of(each.shard), []).append((number, each))

        def read(
            cluster: Cluster, members: list[tuple[int, EntrySelect]]
        ) -> tuple[list[list[Entry]], bool]:
            some = [each for _, each in members]
            return cluster.read(
                lambda engine: engine.indexes.select(table, some).entries, read_from
            )

        any_stale = False
        for members, (entries, stale) in zip(
            groups.values(), self._fan_out.each(groups, read), strict=True
        ):
            found.update(zip((number for number, _ in members), entries, strict=True))
            any_stale |= stale
        return Selected([found[number] for number in range(len(wanted))], any_stale)

    def find(
        self, table: IndexTable, places: Sequence[tuple[int, Encoded, bytes]]
    ) -> list[Entry | None]:
        return self._placement.retry_while_moving(lambda: self._find(table, places))

    def _find(
        self, table: IndexTable, places: Sequence[tuple[int, Encoded, bytes]]
    ) -> list[Entry | None]:
        found: dict[int, Entry | None] = {}
        groups: dict[Cluster, list[int]] = {}
        for number, (shard, _, _) in enumerate(places):
            groups.setdefault(self._cluster_of(shard), []).append(number)
        for cluster, numbers in groups.items():
            some = [places[number] for number in numbers]
            found.update(
                zip(
                    numbers,
                    of_master(cluster, lambda engine, some=some: engine.indexes.find(table, some)),  # type: ignore[misc]
                    strict=True,
                )
            )
        return [found[number] for number in range(len(places))]

    def walk(
        self, table: IndexTable, shard: int, after: tuple[Encoded, bytes] | None, limit: int
    ) -> list[Entry]:
        return self._placement.retry_while_moving(
            lambda: of_master(
                self._cluster_of(shard),
                lambda engine: engine.indexes.walk(table, shard, after, limit),
            )
        )

    def latest_before(self, rows: Sequence[RowsBelow], columns: Sequence[str]) -> list[StoredCell]:
        return self._placement.retry_while_moving(lambda: self._cells.latest_before(rows, columns))

    def cells_between(
        self, shard: int, columns: Sequence[str], location: int, end: int, fence: int
    ) -> list[StoredCell]:
        return self._placement.retry_while_moving(
            lambda: self._cells.between(shard, columns, location, end, fence)
        )

    def outdated(
        self, rows: Sequence[RowRefs], columns: Sequence[str], read_from: Replica = Replica.MASTER
    ) -> Outdated:
        return self._placement.retry_while_moving(
            lambda: self._cells.outdated(rows, columns, read_from)
        )

    def current(
        self,
        row_keys: Mapping[int, Sequence[bytes]],
        columns: Sequence[str] | None,
        read_from: Replica = Replica.MASTER,
    ) -> Current:
        return self._placement.retry_while_moving(
            lambda: self._cells.current(row_keys, columns, read_from)
        )
