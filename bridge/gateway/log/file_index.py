"""The files of kept blocks that are there: by key, by shard, and by their last use."""

from __future__ import annotations

from collections import OrderedDict, defaultdict

from cellfeed.bridge.gateway.log.block_file import (
    BlockKey,
)
from cellfeed.bridge.gateway.log.block_folder import KeptFile


class FileIndex:
    """Used under its owner's lock."""

    def __init__(self) -> None:
        self.bytes = 0
        """Of all files."""
        self._entries: OrderedDict[BlockKey, KeptFile] = OrderedDict()
        """Least recently used first."""
        self._of_shard: defaultdict[int, set[BlockKey]] = defaultdict(set)

    def get(self, key: BlockKey) -> KeptFile | None:
        """The file of a block; None where there is none."""
        return self._entries.get(key)

    def of_shard(self, shard: int) -> list[tuple[BlockKey, KeptFile]]:
        """The files of a shard's blocks."""
        return [(key, self._entries[key]) for key in self._of_shard[shard]]

    def least_used(self) -> BlockKey:
        """The block that was used least recently; there is one."""
        return next(iter(self._entries))

    def used(self, key: BlockKey) -> None:
        """Notes that the block is the one that was used last."""
        self._entries.move_to_end(key)

    def put_in(self, key: BlockKey, entry: KeptFile) -> None:
        """Adds a file."""
        self._entries[key] = entry
        self._of_shard[key.shard].add(key)
        self.bytes += entry.size

    def take_out(self, key: BlockKey) -> KeptFile:
        """Takes a file off the index; it is there."""
        entry = self._entries.pop(key)
        self._of_shard[key.shard].discard(key)
        self.bytes -= entry.size
        return entry

    def bytes_by_partition(self) -> dict[str, dict[int, int]]:
        """Bytes: by the contents that a key names, then by shard."""
        kept: dict[str, dict[int, int]] = {}
        for key, entry in self._entries.items():
            sizes = kept.setdefault(key.contents, {})
            sizes[key.shard] = sizes.get(key.shard, 0) + entry.size
        return kept
