"""A cluster's buffer table, on whichever node is master."""

from __future__ import annotations

from collections.abc import Sequence

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.engines.contract.buffer import BufferCount, BufferedCell, BufferTable


def buffer_of(cluster: Cluster) -> BufferTable:
    """The cluster's buffer table, on whichever node is master."""
    return _OnMaster(cluster)


class _OnMaster:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def add(self, owner: str, cells: Sequence[NewCell]) -> None:
        self._cluster.write(lambda engine, role: engine.buffer.add(owner, cells, role.terms))

    def accept(self, owner: str, cells: Sequence[NewCell]) -> list[bool]:
        return self._cluster.write(
            lambda engine, role: engine.buffer.accept(owner, cells, role.terms)
        )

    def waiting(
        self, owner: str, after_id: int, limit: int, older_than_s: float
    ) -> list[BufferedCell]:
        return self._cluster.write(
            lambda engine, _: engine.buffer.waiting(owner, after_id, limit, older_than_s)
        )

    def remove(self, buffer_ids: Sequence[int]) -> None:
        self._cluster.write(lambda engine, role: engine.buffer.remove(buffer_ids, role.terms))

    def remove_copies(self, owner: str, cells: Sequence[NewCell]) -> None:
        self._cluster.write(
            lambda engine, role: engine.buffer.remove_copies(owner, cells, role.terms)
        )

    def remove_row(self, owner: str, row_key: bytes) -> None:
        self._cluster.write(
            lambda engine, role: engine.buffer.remove_row(owner, row_key, role.terms)
        )

    def mark_conflict(self, buffer_id: int, reason: str) -> None:
        self._cluster.write(
            lambda engine, role: engine.buffer.mark_conflict(buffer_id, reason, role.terms)
        )

    def counts(self) -> list[BufferCount]:
        return self._cluster.write(lambda engine, _: engine.buffer.counts())
