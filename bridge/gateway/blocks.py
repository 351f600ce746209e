"""Encoded blocks of the log. A cell never changes, so a record batch that was encoded once can be sent for ever.

A full block covers ``BLOCK_CELLS`` offsets on a fixed boundary and is kept, least recently used out first. The open end of the log is kept as
segments: what has come since the last fetch is encoded alone, so a cell is encoded at most twice, once when it is new and once in its full block,
however many consumers follow.

A block, or a segment, is one or more batches, each small enough to be sent alone.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Final, NamedTuple

from bridge.events.record_batch import encode_record_batch
from bridge.gateway.limits import BLOCK_CELLS, BLOCKS_BYTES_MAX
from bridge.gateway.topics import Topic
from store.body_codec import decoded_bytes_bound
from store.cells import StoredCell
from store.engines.contract import Engine

_BATCH_BYTES: Final = 768 << 10
"""Body bytes after which a batch ends: below the 1 MiB that consumers fetch from a partition by default; one larger body goes alone."""


class Batch(NamedTuple):
    """An encoded record batch for the offsets from ``start`` up to, not including, ``end``."""

    start: int
    end: int
    data: bytes


Block = list[Batch]


class Blocks:
    """The blocks of all topics of one engine. Used on the event loop; scans and encoding run on ``executor``."""

    def __init__(self, engine: Engine, executor: Executor, bytes_max: int = BLOCKS_BYTES_MAX) -> None:
        self._engine = engine
        self._executor = executor
        self._bytes_max = bytes_max
        self._full: OrderedDict[tuple[str, int, int], Block] = OrderedDict()
        self._ends: dict[tuple[str, int], Block] = {}
        self._under_way: dict[tuple[str, int, int, int], asyncio.Future[Block]] = {}
        self.kept_bytes = 0
        self.hits = 0
        self.encoded = 0

    async def read(self, topic: Topic, shard: int, offset: int, watermark: int, leader_epoch: int, bytes_max: int) -> list[Batch]:
        """Batches from the one that holds ``offset`` on, up to the watermark, until ``bytes_max`` would be exceeded; at least one."""
        taken: list[Batch] = []
        taken_bytes = 0
        while offset < watermark:
            number = offset // BLOCK_CELLS
            if (number + 1) * BLOCK_CELLS <= watermark:
                block = await self._full_block(topic, shard, number, leader_epoch)
            else:
                block = await self._end(topic, shard, offset, watermark, leader_epoch)
            for batch in block:
                if batch.end <= offset:
                    continue
                if taken and taken_bytes + len(batch.data) > bytes_max:
                    return taken
                taken.append(batch)
                taken_bytes += len(batch.data)
                offset = batch.end
        return taken

    async def _full_block(self, topic: Topic, shard: int, number: int, leader_epoch: int) -> Block:
        key = (topic.name, shard, number)
        block = self._full.get(key)
        if block is not None:
            self.hits += 1
            self._full.move_to_end(key)
            return block
        start = number * BLOCK_CELLS
        block = await self._encode_once(topic, shard, start, start + BLOCK_CELLS, leader_epoch)
        if key not in self._full:
            self._full[key] = block
            self.kept_bytes += _size(block)
            end = self._ends.get(key[:2])
            if end is not None and end[0].start < start + BLOCK_CELLS:
                del self._ends[key[:2]]
            while self.kept_bytes > self._bytes_max and len(self._full) > 1:
                _, dropped = self._full.popitem(last=False)
                self.kept_bytes -= _size(dropped)
        return block

    async def _end(self, topic: Topic, shard: int, offset: int, watermark: int, leader_epoch: int) -> Block:
        """Segments of the open block that together cover ``offset`` up to the watermark."""
        key = (topic.name, shard)
        segments = self._ends.get(key, [])
        boundary = watermark // BLOCK_CELLS * BLOCK_CELLS
        if not segments or not boundary <= segments[0].start <= offset <= segments[-1].end:
            # The first look at this open block, or one from before what was kept: all of it from here on is one new piece.
            start = min(offset, segments[0].start) if segments and segments[0].start >= boundary else offset
            segments = await self._encode_once(topic, shard, start, watermark, leader_epoch)
        elif segments[-1].end < watermark:
            segments = segments + await self._encode_once(topic, shard, segments[-1].end, watermark, leader_epoch)
        kept = self._ends.get(key)
        if kept is None or kept[0].start < boundary or (segments[0].start, -segments[-1].end) <= (kept[0].start, -kept[-1].end):
            self._ends[key] = segments
        return segments

    async def _encode_once(self, topic: Topic, shard: int, start: int, end: int, leader_epoch: int) -> Block:
        """Several fetches that want the same piece at the same time wait for one encoding of it."""
        key = (topic.name, shard, start, end)
        future = self._under_way.get(key)
        if future is None:
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(self._executor, encode_range, self._engine, topic, shard, start, end, leader_epoch)
            self._under_way[key] = future
            future.add_done_callback(lambda _: self._under_way.pop(key, None))
            self.encoded += 1
        return await asyncio.shield(future)


def encode_range(engine: Engine, topic: Topic, shard: int, start: int, end: int, leader_epoch: int) -> Block:
    """The batches of one range of offsets, in order and without a gap between them; an offset without a record is a hole in its batch."""
    block: Block = []
    cells: list[StoredCell] = []
    cells_bytes = 0
    position = batch_start = start

    def close(batch_end: int) -> None:
        nonlocal cells, cells_bytes, batch_start
        data = encode_record_batch(topic.event_format, shard, cells, base_offset=batch_start, next_offset=batch_end, leader_epoch=leader_epoch)
        block.append(Batch(batch_start, batch_end, data))
        cells, cells_bytes, batch_start = [], 0, batch_end

    while position < end:
        found = _scan(engine, shard, position, end)
        for cell in found:
            if topic.column is None or cell.column_name == topic.column:
                size = decoded_bytes_bound(cell.body)
                if cells and cells_bytes + size > _BATCH_BYTES:
                    close(cell.added_id)
                cells.append(cell)
                cells_bytes += size
        position = found[-1].added_id + 1 if found else end
    close(end)
    return block


def _scan(engine: Engine, shard: int, start: int, end: int) -> Sequence[StoredCell]:
    found = engine.scan(shard, start, end - start)
    while found and found[-1].added_id >= end:
        found.pop()
    return found


def _size(block: Block) -> int:
    return sum(len(batch.data) for batch in block)
