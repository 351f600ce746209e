"""Index tables over clusters: an entry lies on the cluster of its shard, cells on that of theirs.
Promises X1–X6 of :mod:`cellfeed.store.engines.contract.indexes`.

Writes go to the shard's master, under the leader epoch of the role that this process believes. They
count when a minion has them, as puts do; so a promotion loses none that a location was saved
behind. Reads of entries continue from a minion while the master is away. A query reads several
clusters side by side (:mod:`cellfeed.store.clusters.serving.fan_out`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.sharding import shards_of
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.fan_out import FanOut
from cellfeed.store.clusters.serving.node import WRITE_TIMEOUT_S, NodeEngine
from cellfeed.store.clusters.serving.placement import Placement
from cellfeed.store.engines.contract.index_fences import Fences
from cellfeed.store.engines.contract.indexes import (
    NOTHING,
    UNFENCED,
    Current,
    Encoded,
    Entry,
    EntrySelect,
    IndexTable,
    NodeIndexStore,
    Outdated,
    RowRefs,
    RowsBelow,
    Selected,
)
from cellfeed.store.engines.contract.values import LocatedCell, Replica, WriteTerms
from cellfeed.store.errors import ShardMoving, StorageUnavailable

_LOOKS: Final = 5
_PAUSE_S: Final = 0.01
"""A node that lacks cells which another one has shown has them in a moment: it is asked again, so
many times."""

K = TypeVar("K")
T = TypeVar("T")


class ClusteredIndexes:
    """:class:`cellfeed.store.engines.contract.indexes.IndexStore`. ``placement``: where the shards
    are. A call waits for a shard that moves."""

    def __init__(self, clusters: Sequence[Cluster], placement: Placement, fan_out: FanOut) -> None:
        self._clusters = clusters
        self._fan_out = fan_out
        self._placement = placement
        self._cluster_of = placement.cluster_of
        self._fences = Fences([_FencedCluster(cluster) for cluster in clusters])

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
        for cluster, some in self._by_cluster(entries).items():
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
        for cluster, some in self._by_cluster(entries).items():
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
                    _of_master(cluster, lambda engine, some=some: engine.indexes.find(table, some)),  # type: ignore[misc]
                    strict=True,
                )
            )
        return [found[number] for number in range(len(places))]

    def walk(
        self, table: IndexTable, shard: int, after: tuple[Encoded, bytes] | None, limit: int
    ) -> list[Entry]:
        return self._placement.retry_while_moving(lambda: self._walk(table, shard, after, limit))

    def _walk(
        self, table: IndexTable, shard: int, after: tuple[Encoded, bytes] | None, limit: int
    ) -> list[Entry]:
        return _of_master(
            self._cluster_of(shard), lambda engine: engine.indexes.walk(table, shard, after, limit)
        )

    def latest_before(self, rows: Sequence[RowsBelow], columns: Sequence[str]) -> list[StoredCell]:
        return self._placement.retry_while_moving(lambda: self._latest_before(rows, columns))

    def _latest_before(self, rows: Sequence[RowsBelow], columns: Sequence[str]) -> list[StoredCell]:
        found: list[StoredCell] = []
        for cluster, by_shard in self._by_cluster({each.shard: each for each in rows}).items():
            some = list(by_shard.values())
            there = {each.shard: each.location for each in some}
            found += _once_there(
                cluster,
                there,
                lambda engine, some=some: engine.indexes.latest_before_or_none(some, columns),  # type: ignore[misc]
            )
        return found

    def cells_between(
        self, shard: int, columns: Sequence[str], location: int, end: int, fence: int
    ) -> list[StoredCell]:
        def read(engine: NodeEngine) -> list[StoredCell] | None:
            return engine.indexes.cells_between_or_none(shard, columns, location, end, fence)

        return self._placement.retry_while_moving(
            lambda: _once_there(self._cluster_of(shard), {shard: end}, read)
        )

    def outdated(
        self, rows: Sequence[RowRefs], columns: Sequence[str], read_from: Replica = Replica.MASTER
    ) -> Outdated:
        return self._placement.retry_while_moving(lambda: self._outdated(rows, columns, read_from))

    def _outdated(
        self, rows: Sequence[RowRefs], columns: Sequence[str], read_from: Replica
    ) -> Outdated:
        groups: dict[Cluster, list[tuple[RowRefs, int]]] = {}
        for row, shard in zip(
            rows,
            shards_of([row_key for row_key, _ in rows], self._placement.map.shards),
            strict=True,
        ):
            groups.setdefault(self._cluster_of(shard), []).append((row, shard))

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
        read_from: Replica = Replica.MASTER,
    ) -> Current:
        return self._placement.retry_while_moving(
            lambda: self._current(row_keys, columns, read_from)
        )

    def _current(
        self,
        row_keys: Mapping[int, Sequence[bytes]],
        columns: Sequence[str] | None,
        read_from: Replica,
    ) -> Current:
        def read(cluster: Cluster, some: dict[int, Sequence[bytes]]) -> tuple[Current, bool]:
            return cluster.read(lambda engine: engine.indexes.current(some, columns), read_from)

        found: dict[bytes, list[LocatedCell]] = {}
        any_stale = False
        for (cells, _), stale in self._fan_out.each(self._by_cluster(row_keys), read):
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

    def _by_cluster(self, by_shard: Mapping[int, K]) -> dict[Cluster, dict[int, K]]:
        groups: dict[Cluster, dict[int, K]] = {}
        for shard, each in by_shard.items():
            groups.setdefault(self._cluster_of(shard), {})[shard] = each
        return groups


class _FencedCluster:
    """:class:`cellfeed.store.engines.contract.index_fences.FencedStorage`: a raise counts when a
    minion has it, as entries do."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def fence_numbers(self, shards: Sequence[int]) -> dict[int, int]:
        return _of_master(self._cluster, lambda engine: engine.indexes.fence_numbers(shards))

    def set_fences(self, numbers: Mapping[int, int]) -> None:
        self._cluster.write(lambda engine, role: engine.indexes.set_fences(numbers, role.terms))


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


def _of_master(cluster: Cluster, read: Callable[[NodeEngine], T]) -> T:
    """A read that compares entries with cells must not take a minion that is behind for one that
    lacks something."""
    found, stale = cluster.read(read)
    if stale:
        raise StorageUnavailable(
            f"cluster {cluster.name}: its master is away or unconfirmed: its index may lack rows"
        )
    return found
