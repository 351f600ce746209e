"""Engines whose stored bodies can be given another encoding: E27 of
:mod:`cellfeed.store.engines.contract.engine`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import NamedBodies


class RewritableEngine(Engine, Protocol):
    """An engine whose stored bodies can be given another encoding. E27."""

    def settle_puts(self, shard: int) -> int:
        """Waits for the puts that are under way in a shard; its next added_id. E27. Raises
        StorageUnavailable."""
        ...

    def bodies_named(self, shard: int, prefix: bytes, location: int, limit: int) -> NamedBodies:
        """Of ``limit`` cells from a location on, shown or not, those whose stored bodies begin with
        ``prefix``. Raises StorageUnavailable, DataDamaged."""
        ...

    def replace_bodies(self, shard: int, cells: Sequence[tuple[StoredCell, bytes]]) -> int:
        """How many bodies were replaced by the encodings that come with them. E27. Raises
        StorageUnavailable when none was, OutcomeUnknown when that is not known."""
        ...

    def bodies_with(self, prefix: bytes) -> Mapping[str, int]:
        """How many stored bodies begin so, by a text that names the place. It reads all that the
        storage has, also of shards that have left a cluster; of clusters every node that answers.
        Raises StorageUnavailable."""
        ...
