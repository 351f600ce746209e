"""The shards that Kafka's group has assigned to a loader, and how far each has come."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cellfeed.consumers.warehouse.loader_progress import LoaderProgress
from cellfeed.consumers.warehouse.shard_loader import ShardLoader
from cellfeed.consumers.warehouse.table import WarehouseTable


class AssignedShards:
    """Belongs to the loader's thread. ``directory``: the table's."""

    def __init__(self, directory: Path, progress: LoaderProgress) -> None:
        self._directory = directory
        self._progress = progress
        self.loaders: dict[int, ShardLoader] = {}
        self.oldest_at: dict[int, float] = {}
        """By shard, since when its oldest row waits, by the monotonic clock."""
        self.to_seek: set[int] = set()
        """Shards whose reading must first go back to the loader's next offset."""
        self.ends_seen: dict[int, int] = {}
        """The end of a partition, where the client has reported one."""

    def assign(self, shard: int, loader: ShardLoader) -> None:
        self.loaders[shard] = loader
        self._progress.next_offsets[shard] = loader.next_offset
        self._progress.stopped.pop(shard, None)
        self.to_seek.discard(shard)
        self.ends_seen.pop(shard, None)

    def remove(self, shard: int) -> None:
        """Forgets the shard with the rows that wait there: its next owner reads them again."""
        self.loaders.pop(shard, None)
        self.oldest_at.pop(shard, None)
        self.to_seek.discard(shard)

    def remove_all(self) -> None:
        self.oldest_at.clear()
        self.loaders.clear()

    def have_reached(self, until_offsets: Mapping[int, int] | None) -> bool:
        """Whether each partition has reached its offset or has stopped; those of other members as
        the table says."""
        if until_offsets is None:
            return False
        others = {
            shard: end for shard, end in until_offsets.items() if not self._is_done(shard, end)
        }
        if not others:
            return True
        if any(shard in self.loaders for shard in others):
            return False
        if not self.loaders:
            return False
        # The remaining shards belong to other members of the group: the table has their positions.
        positions = WarehouseTable(self._directory).next_offsets()
        return all(positions.get(shard, 0) >= end for shard, end in others.items())

    def _is_done(self, shard: int, end: int) -> bool:
        loader = self.loaders.get(shard)
        if shard in self._progress.stopped or end == 0:
            return True
        # Behind the last record there may be offsets without one (another column's cells); the end
        # of the partition decides.
        return (
            loader is not None
            and shard not in self.to_seek
            and max(loader.next_offset, self.ends_seen.get(shard, 0)) >= end
        )
