"""Where the tables of a datastore are on a MySQL server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a datastore's tables are. ``datastore`` is a checked name; ``held``: the shards that
    this server's cluster holds (all, when not given)."""

    datastore: str
    shards: int
    owned: Sequence[int] | None = None

    @property
    def meta(self) -> str:
        """The database of the counters, the state and the buffer."""
        return f"{self.datastore}_meta"

    def database(self, shard: int) -> str:
        """The database of one shard's cells."""
        return f"{self.datastore}_{shard:04d}"

    @property
    def owned_shards(self) -> Sequence[int]:
        return range(self.shards) if self.owned is None else self.owned
