"""A warehouse's table as a place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cellfeed.consumers.warehouse.table import WarehouseTable
from cellfeed.store.cells.digest import ShardDigest
from cellfeed.verify.place import Erased


class WarehousePlace:
    """A warehouse table."""

    name = "warehouse"

    def __init__(self, directory: Path) -> None:
        self._table = WarehouseTable(directory)

    def first_ids(self) -> dict[int, int]:
        """Nothing: a table keeps cells that were trimmed from the log."""
        return {}

    def next_ids(self) -> dict[int, int]:
        return self._table.next_ids()

    def digests(self, ids: Mapping[int, range], erased: Erased) -> dict[int, ShardDigest]:
        return self._table.digests(
            {shard: each.stop for shard, each in ids.items()},
            {shard: each.start for shard, each in ids.items()},
            erased.body,
        )
