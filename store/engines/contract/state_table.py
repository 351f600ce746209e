"""The state table of an engine: E11 of :mod:`cellfeed.store.engines.contract.engine`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from cellfeed.store.engines.contract.values import StateEntry, WriteTerms


class StateTable(Protocol):
    """A small durable key-value table with compare-and-set over several keys (as etcd's
    transactions or ZooKeeper's multi)."""

    def get(self, key: str) -> StateEntry | None: ...

    def list(self, prefix: str) -> list[StateEntry]:
        """Entries whose key begins with ``prefix``, by key."""
        ...

    def commit(
        self, write: Mapping[str, bytes | None], expect: Mapping[str, int | None] | None = None
    ) -> int | None:
        """Writes all keys (None deletes) if every expected version holds (None: the key must be
        absent). Returns the new revision; None if not."""
        ...

    def now_us(self) -> int:
        """The storage's clock, microseconds since 1970 UTC: the one clock for leases."""
        ...


class NodeStateTable(StateTable, Protocol):
    """The state table of one node of a cluster, where commits come with terms."""

    def commit(
        self,
        write: Mapping[str, bytes | None],
        expect: Mapping[str, int | None] | None = None,
        terms: WriteTerms | None = None,
    ) -> int | None:
        """As a state table's. Raises StaleWriter, nothing written, under another leader epoch."""
        ...
