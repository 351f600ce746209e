"""Reads by key over clusters: each key is asked of the cluster that has its shard.

A minion may lack a cell that was acknowledged, so a stale answer never says that a cell is not
there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from cellfeed.store.cells.cell import StoredCell, Triple
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.node_engine import NodeEngine
from cellfeed.store.clusters.serving.placement import Placement
from cellfeed.store.engines.contract.read_bounds import Page
from cellfeed.store.engines.contract.values import (
    LocatedCell,
    Replica,
)
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.limits import READ_KEYS_MAX

T = TypeVar("T")
K = TypeVar("K")


class ClusteredKeyReads:
    """See the module."""

    def __init__(self, placement: Placement, shards: int) -> None:
        self._placement, self._shards = placement, shards

    def get(
        self, triples: Sequence[Triple], read_from: Replica = Replica.MASTER
    ) -> list[LocatedCell | None]:
        return self._each(
            [(triple.row_key, triple) for triple in triples],
            lambda engine, wanted: engine.get(wanted),
            _as_stale,
            read_from,
            lasting=all_found,
        )

    def latest(
        self, keys: Sequence[tuple[bytes, str]], read_from: Replica = Replica.MASTER
    ) -> list[LocatedCell | None]:
        keyed = [(row_key, (row_key, column)) for row_key, column in keys]
        return self._each(keyed, lambda engine, wanted: engine.latest(wanted), _as_stale, read_from)

    def row(
        self, row_keys: Sequence[bytes], read_from: Replica = Replica.MASTER, after_column: str = ""
    ) -> list[list[LocatedCell]]:
        keyed = [(row_key, row_key) for row_key in row_keys]

        def read(engine: NodeEngine, wanted: list[bytes]) -> list[list[LocatedCell]]:
            return engine.row(wanted, after_column=after_column if wanted[0] == row_keys[0] else "")

        # That there is nothing behind a column says nothing of the row: it was found.
        begun = row_keys[:1] if after_column else ()
        return self._each(
            keyed,
            read,
            lambda row: [each._replace(stale=True) for each in row],
            read_from,
            lambda wanted, found: _all_there(wanted, found, begun),
        )

    def row_cells(
        self, row_key: bytes, after: int = -1, limit: int = READ_KEYS_MAX
    ) -> list[StoredCell]:
        return self._placement.retry_while_moving(lambda: self._row_cells(row_key, after, limit))

    def _row_cells(self, row_key: bytes, after: int, limit: int) -> list[StoredCell]:
        cluster = self._placement.cluster_of(shard_of(row_key, self._shards))
        found, stale = cluster.read(lambda engine: engine.row_cells(row_key, after, limit))
        if stale:
            raise StorageUnavailable(
                f"cluster {cluster.name}: its master is away or unconfirmed: which cells a row has"
                " is not known"
            )
        return found

    def _grouped(self, keyed: Sequence[tuple[bytes, K]]) -> dict[Cluster, list[tuple[int, K]]]:
        """By cluster: the items, with their indexes."""
        groups: dict[Cluster, list[tuple[int, K]]] = {}
        for index, (row_key, item) in enumerate(keyed):
            groups.setdefault(
                self._placement.cluster_of(shard_of(row_key, self._shards)), []
            ).append((index, item))
        return groups

    def _each(
        self,
        keyed: Sequence[tuple[bytes, K]],
        read: Callable[[NodeEngine, list[K]], list[T]],
        as_stale: Callable[[T], T],
        read_from: Replica,
        enough: Callable[[list[K], list[T]], bool] = lambda _, values: all_found(values),
        lasting: Callable[[list[T]], bool] | None = None,
    ) -> list[T]:
        return self._placement.retry_while_moving(
            lambda: self._each_now(keyed, read, as_stale, read_from, enough, lasting)
        )

    def _each_now(
        self,
        keyed: Sequence[tuple[bytes, K]],
        read: Callable[[NodeEngine, list[K]], list[T]],
        as_stale: Callable[[T], T],
        read_from: Replica,
        enough: Callable[[list[K], list[T]], bool],
        lasting: Callable[[list[T]], bool] | None,
    ) -> list[T]:
        """The first of them, up to the place where one of the clusters had no room left for its own
        (E26)."""
        results: dict[int, T] = {}
        end = len(keyed)
        for cluster, members in self._grouped(keyed).items():
            wanted = [item for _, item in members]
            values, stale = cluster.read(
                lambda engine, wanted=wanted: read(engine, wanted),  # type: ignore[misc]
                read_from,
                lambda values, wanted=wanted: enough(wanted, values),  # type: ignore[misc]
                lasting=lasting,
            )
            if stale and not enough(wanted, values):
                # Cells that a minion lacks may still have been acknowledged: "not there" is only
                # the master's to say.
                raise StorageUnavailable(
                    f"cluster {cluster.name}: its master is away or unconfirmed, and the cells are"
                    " not on its minions: absence is not known"
                )
            for (index, _), value in zip(members, values, strict=False):
                results[index] = as_stale(value) if stale else value
            if len(values) < len(members) or _is_full(values):
                end = min(end, members[len(values) - 1][0] + 1)
        return [results[index] for index in range(end)]


def _as_stale(found: LocatedCell | None) -> LocatedCell | None:
    return found and found._replace(stale=True)


def _all_there(row_keys: Sequence[bytes], rows: Sequence[object], begun: Sequence[bytes]) -> bool:
    """Whether every row has a cell, but for those that are gone on with."""
    return all(row or row_key in begun for row_key, row in zip(row_keys, rows, strict=False))


def _is_full(values: Sequence[object]) -> bool:
    """Whether one cluster's answer is as much as an answer holds: the last of it may be a part of a
    row."""
    page = Page()
    for value in values:
        page.take_up_to_full_of(
            value if isinstance(value, list) else [value] if isinstance(value, LocatedCell) else []
        )
    return page.is_full


def all_found(values: Sequence[object]) -> bool:
    """Whether every key has a cell."""
    return all(values)
