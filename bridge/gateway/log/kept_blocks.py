"""Encoded blocks in memory: full blocks, least recently used out first, and for each log the
segments of its open end.

When a log was trimmed, blocks from below its new start are dropped. The block in which it starts is
kept from there on.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict

from cellfeed.bridge.gateway.limits import BLOCK_BYTES_MAX, BLOCK_CELLS
from cellfeed.bridge.gateway.log.batch import Block, block_bytes


def boundary(watermark: int) -> int:
    """Where the open block begins."""
    return watermark // BLOCK_CELLS * BLOCK_CELLS


class KeptBlocks:
    """Used on the event loop. A log is a topic's content and a shard. ``bytes_max`` bounds the full
    blocks."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        """Of the full blocks."""
        self.hits = 0
        """Full blocks that were found here."""
        self._full: OrderedDict[tuple[str, int, int], Block] = OrderedDict()
        self._ends: dict[tuple[str, int], Block] = {}
        self._starts: dict[int, int] = {}
        """Where the logs of shards that were trimmed start."""

    def by_partition(self) -> dict[str, dict[int, int]]:
        """Bytes: by a topic's content, then by shard."""
        kept: dict[str, dict[int, int]] = {}
        blocks = [((content, shard), block) for (content, shard, _), block in self._full.items()]
        for (content, shard), block in itertools.chain(blocks, self._ends.items()):
            sizes = kept.setdefault(content, {})
            sizes[shard] = sizes.get(shard, 0) + block_bytes(block)
        return kept

    def start_of(self, shard: int) -> int:
        """Where the shard's log starts, as far as it was trimmed."""
        return self._starts.get(shard, 0)

    def trim(self, shard: int, log_start: int) -> None:
        """The shard's log starts there: blocks from below are dropped."""
        self._starts[shard] = log_start
        for key in [
            key
            for key, block in self._full.items()
            if key[1] == shard and block[0].start < log_start
        ]:
            self.bytes -= block_bytes(self._full.pop(key))
        for log in [
            log
            for log, segments in self._ends.items()
            if log[1] == shard and segments[0].start < log_start
        ]:
            del self._ends[log]

    def forget(self, shard: int, start: int, end: int) -> None:
        """Drops all blocks with offsets from ``start`` up to, not including, ``end``."""
        for key in [
            key
            for key, block in self._full.items()
            if key[1] == shard and block[0].start < end and start < block[-1].end
        ]:
            self.bytes -= block_bytes(self._full.pop(key))
        for log in [
            log
            for log, segments in self._ends.items()
            if log[1] == shard and segments[0].start < end and start < segments[-1].end
        ]:
            del self._ends[log]

    # --- full blocks ------------------------------------------------------------------------------

    def has_full(self, log: tuple[str, int], number: int) -> bool:
        return (*log, number) in self._full

    def full(self, log: tuple[str, int], number: int) -> Block | None:
        """The log's full block of that number, which counts as used just now."""
        key = (*log, number)
        block = self._full.get(key)
        if block is not None:
            self.hits += 1
            self._full.move_to_end(key)
        return block

    def keep_full(self, log: tuple[str, int], number: int, block: Block) -> None:
        """Keeps a block in the place of the end's segments, unless it is kept already, or the log
        was trimmed meanwhile."""
        key = (*log, number)
        if key in self._full or block[0].start < self.start_of(log[1]):
            return
        self._full[key] = block
        self.bytes += block_bytes(block)
        end = self._ends.get(log)
        if end is not None and end[0].start < (number + 1) * BLOCK_CELLS:
            del self._ends[log]
        while self.bytes > self.bytes_max and len(self._full) > 1:
            _, dropped = self._full.popitem(last=False)
            self.bytes -= block_bytes(dropped)

    # --- the open end -----------------------------------------------------------------------------

    def keep_end(self, log: tuple[str, int], segments: Block) -> None:
        """Keeps them, unless they are large, or the kept segments of the same open block begin
        earlier or end later."""
        if block_bytes(segments) > BLOCK_BYTES_MAX:
            return
        kept = self._ends.get(log)
        if (
            kept is None
            or kept[0].start < boundary(segments[-1].end)
            or (segments[0].start, -segments[-1].end) <= (kept[0].start, -kept[-1].end)
        ):
            self._ends[log] = segments

    def end(self, log: tuple[str, int], offset: int, watermark: int) -> tuple[Block, int]:
        """The kept segments of the open block that begin at ``offset`` or before it, and where they
        end: cells from there up to the watermark are to be encoded."""
        segments = self._ends.get(log, [])
        if segments and segments[0].start < self.start_of(log[1]):
            segments = []  # they were being encoded while the log was trimmed
        if segments and boundary(watermark) <= segments[0].start <= offset <= segments[-1].end:
            return segments, segments[-1].end
        # The first look at this open block, or one from before the kept part: all of it from here
        # on is one new piece.
        return [], min(offset, segments[0].start) if segments and segments[0].start >= boundary(
            watermark
        ) else offset
