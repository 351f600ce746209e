"""Encoded blocks of the log. A cell never changes, so a record batch that was encoded once can be
sent for ever.

A full block covers ``BLOCK_CELLS`` offsets on a fixed boundary and is kept, least recently used out
first. The open end of the log is kept as segments: the cells since the last fetch are encoded
alone. So a cell is encoded at most twice, once when it is new and once in its full block, however
many consumers follow.

A block, or a segment, is one or more batches, each small enough to be sent alone. Its batches cover
all of its offsets, also where the topic's view shows no cell, so every reader reaches the end of
the log. Where bodies are large the block ends early (``BLOCK_BYTES_MAX``): the cells behind it are
encoded for each reader from its position, and not kept. Topics whose records are the same
(``Topic.content``) have their blocks together.

Blocks that memory has no room for, or that an earlier process encoded, may be in files
(:mod:`cellfeed.bridge.gateway.log.block_files`). Full blocks are looked for there before the store
is read.

When a log was trimmed, blocks from below its new start are dropped (:meth:`Blocks.trim`). The block
in which it starts is encoded from there on. Reads under way at that moment may fail with Trimmed:
their caller looks at the log's start again.

When bodies of a log were erased, all its blocks are dropped (:meth:`Blocks.erased`), and reads and
encodings under way are done again. The count of erasures in the heads shows it. It changes again
for every node that reaches the erasure. So blocks that were read from a node before it had reached
the erasure are dropped when it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from math import inf
from time import monotonic
from typing import Final

from cellfeed.bridge.gateway.limits import BLOCK_BYTES_MAX, BLOCK_CELLS, BLOCKS_BYTES_MAX
from cellfeed.bridge.gateway.log.batch import Batch, Block, block_bytes
from cellfeed.bridge.gateway.log.block_files import BlockFiles
from cellfeed.bridge.gateway.log.encode import Piece
from cellfeed.bridge.gateway.log.encodings import Encodings
from cellfeed.bridge.gateway.log.kept_blocks import KeptBlocks, boundary
from cellfeed.bridge.gateway.topics.topics import Topic
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.limits import ADDED_ID_MAX

_PREPARED_CELLS_MAX: Final = 2_000
"""Cells that are read together for one fetch: those of a fraction of a second. More are read
partition by partition, as the answer has room."""


Wanted = tuple[Topic, int, int, int, int]
"""Topic, shard, the offset that is asked for, watermark and leader epoch."""


class Blocks:
    """The blocks of all topics of one engine. Used on the event loop; scans and encoding run on
    ``executor``."""

    def __init__(
        self,
        engine: Engine,
        executor: Executor,
        bytes_max: int = BLOCKS_BYTES_MAX,
        files: BlockFiles | None = None,
    ) -> None:
        self._engine = engine
        self.files = files
        self.kept = KeptBlocks(bytes_max)
        self._encodings = Encodings(engine, executor, files)
        self._begun_ahead: set[asyncio.Task[Block]] = set()
        """The event loop keeps only weak references to its tasks."""

    @property
    def encoded(self) -> int:
        """Pieces that were encoded since the start."""
        return self._encodings.encoded

    async def read(
        self,
        topic: Topic,
        shard: int,
        offset: int,
        watermark: int,
        leader_epoch: int,
        bytes_max: int,
        until_s: float = inf,
    ) -> list[Batch]:
        """Batches from the one that holds ``offset`` on, up to the watermark; at least one. They
        end early where ``bytes_max`` would be exceeded, or at the moment ``until_s`` of the
        monotonic clock.
        """
        taken: list[Batch] = []
        taken_bytes = 0
        while offset < watermark and not (taken and monotonic() >= until_s):
            number = offset // BLOCK_CELLS
            end = min((number + 1) * BLOCK_CELLS, watermark)
            if (number + 1) * BLOCK_CELLS <= watermark:
                block = await self._full_block(topic, shard, number, watermark, leader_epoch)
            else:
                block = await self._end(topic, shard, offset, watermark, leader_epoch)
            if block[-1].end <= offset:
                block = await self._encodings.once(topic, shard, offset, end, leader_epoch)
            for batch in block:
                if batch.end <= offset:
                    continue
                if taken and taken_bytes + len(batch.data) > bytes_max:
                    return taken
                taken.append(batch)
                taken_bytes += len(batch.data)
                offset = batch.end
        return taken

    def trim(self, shard: int, log_start: int) -> None:
        """The shard's log starts there: blocks from below are dropped."""
        self.kept.trim(shard, log_start)
        if self.files is not None:
            self.files.trim(shard, log_start)

    def erased(self, shard: int) -> None:
        """Bodies of the shard were erased, now or before this process began: all its blocks are
        dropped, and none is kept in files any more. The count in the heads is the process's own. So
        nobody could say which erasures another process's file has seen."""
        self.forget(shard, 0, ADDED_ID_MAX + 1, ADDED_ID_MAX + 1)

    def forget(self, shard: int, start: int, end: int, known: int) -> None:
        """Cells with offsets from ``start`` up to, not including, ``end`` were erased. ``known`` is
        the first watermark that shows it: blocks from when the log was known up to less have the
        old cells. When this returns, no read that begins gives the cells as they were, from memory
        or from files.

        Files outlive the process, and a process that was not running missed the call. So the caller
        repeats all its calls at each start, before the first read. Files that were written since
        are not lost by it.
        """
        self._encodings.forget(shard, start, end)
        self.kept.forget(shard, start, end)
        if self.files is not None:
            self.files.forget(shard, start, end, known)

    def begin(
        self, topic: Topic, shard: int, offset: int, watermark: int, leader_epoch: int
    ) -> None:
        """Begins to read and encode the full block that holds ``offset``, for a :meth:`read` that
        is about to come."""
        start = offset // BLOCK_CELLS * BLOCK_CELLS
        if start >= boundary(watermark) or self.kept.has_full(
            (topic.content, shard), start // BLOCK_CELLS
        ):
            return
        piece = (topic.content, shard, max(start, self.kept.start_of(shard)), start + BLOCK_CELLS)
        if not self._encodings.is_under_way(piece):
            begun = asyncio.get_running_loop().create_task(
                self._full_block(topic, shard, start // BLOCK_CELLS, watermark, leader_epoch)
            )
            self._begun_ahead.add(begun)
            begun.add_done_callback(self._begun_ahead.discard)
            begun.add_done_callback(
                lambda done: done.cancelled() or done.exception()
            )  # the next reader gets the error again

    async def _full_block(
        self, topic: Topic, shard: int, number: int, watermark: int, leader_epoch: int
    ) -> Block:
        block = self.kept.full((topic.content, shard), number)
        if block is not None:
            return block
        start = number * BLOCK_CELLS
        block = await self._encodings.once(
            topic,
            shard,
            max(start, self.kept.start_of(shard)),
            start + BLOCK_CELLS,
            leader_epoch,
            watermark,
        )
        self.kept.keep_full((topic.content, shard), number, block)
        return block

    async def _end(
        self, topic: Topic, shard: int, offset: int, watermark: int, leader_epoch: int
    ) -> Block:
        """Segments of the open block that together cover ``offset`` up to the watermark."""
        key = (topic.content, shard)
        segments, start = self.kept.end(key, offset, watermark)
        if start < watermark:
            forgets = self._encodings.forgets(shard)
            new = await self._encodings.once(topic, shard, start, watermark, leader_epoch)
            if forgets != self._encodings.forgets(shard):
                return await self._end(topic, shard, offset, watermark, leader_epoch)
            if segments and block_bytes(segments) + block_bytes(new) > BLOCK_BYTES_MAX:
                return segments if offset < start else new
            segments = segments + new
        self.kept.keep_end(key, segments)
        return segments

    def prepare(self, wanted: Iterable[Wanted]) -> None:
        """Begins to read and encode, in one go, the new cells at the ends of these logs: a fetch of
        many partitions would else ask the store once for each."""
        groups: dict[str, list[tuple[Piece, Block]]] = {}
        cells = 0
        for topic, shard, offset, watermark, leader_epoch in wanted:
            if not boundary(watermark) <= offset < watermark:
                continue
            segments, start = self.kept.end((topic.content, shard), offset, watermark)
            if (
                start < watermark
                and not self._encodings.is_under_way((topic.content, shard, start, watermark))
                and cells + watermark - start <= _PREPARED_CELLS_MAX
            ):
                # A cluster that is away holds up nobody else's.
                groups.setdefault(self._engine.commit_group(shard), []).append(
                    (Piece(topic, shard, start, watermark, leader_epoch), segments)
                )
                cells += watermark - start
        for group in groups.values():
            if len(group) > 1:
                self._encode_together(group)

    def _encode_together(self, group: Sequence[tuple[Piece, Block]]) -> None:
        """Fetches ask for one piece after the other. So all are kept at once, each behind the
        segments that were there before."""

        def encoded(number: int, new: Block) -> None:
            piece, before = group[number]
            self.kept.keep_end((piece.topic.content, piece.shard), before + new)

        self._encodings.together([piece for piece, _ in group], encoded)
