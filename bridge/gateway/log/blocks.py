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
import itertools
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Executor
from math import inf
from threading import Lock
from time import monotonic
from typing import Final, NamedTuple

from cellfeed.bridge.events.record_batch import encode_record_batch
from cellfeed.bridge.gateway.limits import BLOCK_BYTES_MAX, BLOCK_CELLS, BLOCKS_BYTES_MAX
from cellfeed.bridge.gateway.log.batch import Batch, Block, block_bytes
from cellfeed.bridge.gateway.log.block_files import BlockFiles
from cellfeed.bridge.gateway.topics.topics import Topic
from cellfeed.store.cells.body_codec import decoded_bytes_bound
from cellfeed.store.cells.cell import ERASED_COLUMN, StoredCell
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import LogRange
from cellfeed.store.limits import ADDED_ID_MAX

_BATCH_BYTES: Final = 768 << 10
"""Body bytes after which a batch ends: below the 1 MiB that consumers fetch from a partition by
default; one larger body goes alone."""


_PREPARED_CELLS_MAX: Final = 2_000
"""Cells that are read together for one fetch: what comes in a fraction of a second. More are read
partition by partition, as the answer has room."""


Wanted = tuple[Topic, int, int, int, int]
"""Topic, shard, the offset that is asked for, watermark and leader epoch."""


class _Piece(NamedTuple):
    topic: Topic
    shard: int
    start: int
    end: int
    leader_epoch: int


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
        self._executor = executor
        self.bytes_max = bytes_max
        self._full: OrderedDict[tuple[str, int, int], Block] = OrderedDict()
        self._ends: dict[tuple[str, int], Block] = {}
        self._under_way: dict[tuple[str, int, int, int], asyncio.Future[Block]] = {}
        self._starts: dict[int, int] = {}
        """Where the logs of shards that were trimmed start."""
        self._forgets: Counter[int] = Counter()
        """How often something of a shard was forgotten."""
        self._begun_ahead: set[asyncio.Task[Block]] = set()
        """The event loop keeps only weak references to its tasks."""
        self.kept_bytes = 0
        self.hits = 0
        self.encoded = 0
        self._counting = Lock()

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
                block = await self._encode_once(topic, shard, offset, end, leader_epoch)
            for batch in block:
                if batch.end <= offset:
                    continue
                if taken and taken_bytes + len(batch.data) > bytes_max:
                    return taken
                taken.append(batch)
                taken_bytes += len(batch.data)
                offset = batch.end
        return taken

    def kept_by_partition(self) -> dict[str, dict[int, int]]:
        """Bytes in memory: by a topic's content, then by shard."""
        kept: dict[str, dict[int, int]] = {}
        blocks = [((content, shard), block) for (content, shard, _), block in self._full.items()]
        for (content, shard), block in itertools.chain(blocks, self._ends.items()):
            sizes = kept.setdefault(content, {})
            sizes[shard] = sizes.get(shard, 0) + block_bytes(block)
        return kept

    def trim(self, shard: int, log_start: int) -> None:
        """The shard's log starts there: blocks from below are dropped."""
        self._starts[shard] = log_start
        for key in [
            key
            for key, block in self._full.items()
            if key[1] == shard and block[0].start < log_start
        ]:
            self.kept_bytes -= block_bytes(self._full.pop(key))
        for end in [
            end
            for end, segments in self._ends.items()
            if end[1] == shard and segments[0].start < log_start
        ]:
            del self._ends[end]
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
        self._forgets[shard] += 1
        for key in [
            key
            for key, block in self._full.items()
            if key[1] == shard and block[0].start < end and start < block[-1].end
        ]:
            self.kept_bytes -= block_bytes(self._full.pop(key))
        for place in [
            place
            for place, segments in self._ends.items()
            if place[1] == shard and segments[0].start < end and start < segments[-1].end
        ]:
            del self._ends[place]
        for piece in [
            piece
            for piece in self._under_way
            if piece[1] == shard and piece[2] < end and start < piece[3]
        ]:
            del self._under_way[piece]  # the next reader has it read again
        if self.files is not None:
            self.files.forget(shard, start, end, known)

    def begin(
        self, topic: Topic, shard: int, offset: int, watermark: int, leader_epoch: int
    ) -> None:
        """Begins to read and encode the full block that holds ``offset``, for a :meth:`read` that
        is about to come."""
        start = offset // BLOCK_CELLS * BLOCK_CELLS
        if (
            start >= _boundary(watermark)
            or (topic.content, shard, start // BLOCK_CELLS) in self._full
        ):
            return
        if (
            topic.content,
            shard,
            max(start, self._starts.get(shard, 0)),
            start + BLOCK_CELLS,
        ) not in self._under_way:
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
        key = (topic.content, shard, number)
        block = self._full.get(key)
        if block is not None:
            self.hits += 1
            self._full.move_to_end(key)
            return block
        start = number * BLOCK_CELLS
        block = await self._encode_once(
            topic,
            shard,
            max(start, self._starts.get(shard, 0)),
            start + BLOCK_CELLS,
            leader_epoch,
            watermark,
        )
        if key not in self._full and block[0].start >= self._starts.get(shard, 0):
            self._full[key] = block
            self.kept_bytes += block_bytes(block)
            end = self._ends.get(key[:2])
            if end is not None and end[0].start < start + BLOCK_CELLS:
                del self._ends[key[:2]]
            while self.kept_bytes > self.bytes_max and len(self._full) > 1:
                _, dropped = self._full.popitem(last=False)
                self.kept_bytes -= block_bytes(dropped)
        return block

    async def _end(
        self, topic: Topic, shard: int, offset: int, watermark: int, leader_epoch: int
    ) -> Block:
        """Segments of the open block that together cover ``offset`` up to the watermark."""
        key = (topic.content, shard)
        segments, start = self._kept_end(key, offset, watermark)
        if start < watermark:
            forgets = self._forgets[shard]
            new = await self._encode_once(topic, shard, start, watermark, leader_epoch)
            if forgets != self._forgets[shard]:
                return await self._end(topic, shard, offset, watermark, leader_epoch)
            if segments and block_bytes(segments) + block_bytes(new) > BLOCK_BYTES_MAX:
                return segments if offset < start else new
            segments = segments + new
        self._keep_end(key, segments)
        return segments

    def _keep_end(self, key: tuple[str, int], segments: Block) -> None:
        """Keeps them, unless they are large, or the kept segments of the same open block begin
        earlier or end later."""
        if block_bytes(segments) > BLOCK_BYTES_MAX:
            return
        kept = self._ends.get(key)
        if (
            kept is None
            or kept[0].start < _boundary(segments[-1].end)
            or (segments[0].start, -segments[-1].end) <= (kept[0].start, -kept[-1].end)
        ):
            self._ends[key] = segments

    def _kept_end(self, key: tuple[str, int], offset: int, watermark: int) -> tuple[Block, int]:
        """The kept segments of the open block that begin at ``offset`` or before it, and where they
        end: cells from there up to the watermark are to be encoded."""
        segments = self._ends.get(key, [])
        if segments and segments[0].start < self._starts.get(key[1], 0):
            segments = []  # they were being encoded while the log was trimmed
        if segments and _boundary(watermark) <= segments[0].start <= offset <= segments[-1].end:
            return segments, segments[-1].end
        # The first look at this open block, or one from before what was kept: all of it from here
        # on is one new piece.
        return [], min(offset, segments[0].start) if segments and segments[0].start >= _boundary(
            watermark
        ) else offset

    def prepare(self, wanted: Iterable[Wanted]) -> None:
        """Begins to read and encode, in one go, the new cells at the ends of these logs: a fetch of
        many partitions would else ask the store once for each."""
        groups: dict[str, list[tuple[_Piece, Block]]] = {}
        cells = 0
        for topic, shard, offset, watermark, leader_epoch in wanted:
            if not _boundary(watermark) <= offset < watermark:
                continue
            segments, start = self._kept_end((topic.content, shard), offset, watermark)
            if (
                start < watermark
                and (topic.content, shard, start, watermark) not in self._under_way
                and cells + watermark - start <= _PREPARED_CELLS_MAX
            ):
                # A cluster that is away holds up nobody else's.
                groups.setdefault(self._engine.commit_group(shard), []).append(
                    (_Piece(topic, shard, start, watermark, leader_epoch), segments)
                )
                cells += watermark - start
        for group in groups.values():
            if len(group) > 1:
                self._encode_together(
                    [piece for piece, _ in group], [segments for _, segments in group]
                )

    def _encode_together(self, pieces: Sequence[_Piece], before: Sequence[Block]) -> None:
        """All pieces are done at the same moment, and fetches ask for one after the other. So all
        are kept at once, each behind the segments that were there ``before``. Pieces of a shard of
        which something was forgotten meanwhile are not kept."""
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Block]] = [loop.create_future() for _ in pieces]
        forgets = [self._forgets[piece.shard] for piece in pieces]
        for piece, future in zip(pieces, futures, strict=True):
            self._begun((piece.topic.content, piece.shard, piece.start, piece.end), future)
        self._count_encoded(len(pieces))

        def done(encoding: asyncio.Future[list[Block]]) -> None:
            _hand_out(encoding, futures)
            if encoding.cancelled() or encoding.exception() is not None:
                return
            for piece, segments, count, new in zip(
                pieces, before, forgets, encoding.result(), strict=True
            ):
                if count == self._forgets[piece.shard]:
                    self._keep_end((piece.topic.content, piece.shard), segments + new)

        loop.run_in_executor(self._executor, encode_pieces, self._engine, pieces).add_done_callback(
            done
        )

    async def _encode_once(
        self,
        topic: Topic,
        shard: int,
        start: int,
        end: int,
        leader_epoch: int,
        known: int | None = None,
    ) -> Block:
        """Several fetches that want the same piece at the same time wait for one encoding of it.
        ``known``: the watermark; given for a piece that may be in files."""
        key = (topic.content, shard, start, end)
        while True:
            forgets = self._forgets[shard]
            future = self._under_way.get(key)
            if future is None:
                loop = asyncio.get_running_loop()
                if self.files is not None and known is not None:
                    future = loop.run_in_executor(
                        self._executor,
                        self._read_or_encode,
                        self.files,
                        topic,
                        shard,
                        start,
                        end,
                        leader_epoch,
                        known,
                    )
                else:
                    future = loop.run_in_executor(
                        self._executor,
                        encode_range,
                        self._engine,
                        topic,
                        shard,
                        start,
                        end,
                        leader_epoch,
                    )
                    self._count_encoded(1)
                self._begun(key, future)
            block = await asyncio.shield(future)
            if forgets == self._forgets[shard]:
                return block

    def _read_or_encode(
        self,
        files: BlockFiles,
        topic: Topic,
        shard: int,
        start: int,
        end: int,
        leader_epoch: int,
        known: int,
    ) -> Block:
        key = files.key(topic, shard, start, end)
        block = files.read(key, leader_epoch)
        if block is None:
            block = encode_range(self._engine, topic, shard, start, end, leader_epoch)
            self._count_encoded(1)
            if block[-1].end == end:
                files.keep(key, block, known, leader_epoch)
        return block

    def _count_encoded(self, pieces: int) -> None:
        with self._counting:
            self.encoded += pieces

    def _begun(self, key: tuple[str, int, int, int], future: asyncio.Future[Block]) -> None:
        self._under_way[key] = future
        future.add_done_callback(
            lambda done: None if self._under_way.get(key) is not done else self._under_way.pop(key)
        )


def _boundary(watermark: int) -> int:
    """Where the open block begins."""
    return watermark // BLOCK_CELLS * BLOCK_CELLS


def _hand_out(
    encoding: asyncio.Future[list[Block]], futures: Sequence[asyncio.Future[Block]]
) -> None:
    if encoding.cancelled():
        for future in futures:
            future.cancel()
    elif (error := encoding.exception()) is not None:
        for future in futures:
            future.set_exception(error)
            future.exception()  # nobody may come for it: the fetch had enough before
    else:
        for future, block in zip(futures, encoding.result(), strict=True):
            future.set_result(block)


def encode_pieces(engine: Engine, pieces: Sequence[_Piece]) -> list[Block]:
    """As :func:`encode_range` for each, read together."""
    found = engine.scan_many(
        [LogRange(piece.shard, piece.start, piece.end - piece.start) for piece in pieces]
    )
    blocks: list[Block] = []
    left = BLOCK_BYTES_MAX
    for piece, first in zip(pieces, found, strict=True):
        blocks.append(encode_range(engine, *piece, first, bytes_max=max(left, 1)))
        left -= block_bytes(blocks[-1])
    return blocks


def encode_range(
    engine: Engine,
    topic: Topic,
    shard: int,
    start: int,
    end: int,
    leader_epoch: int,
    first: Sequence[StoredCell] | None = None,
    left_out: Collection[int] = (),
    bytes_max: int = BLOCK_BYTES_MAX,
) -> Block:
    """The batches of one range of offsets, in order and without a gap between them; an offset
    without a record is a hole in its batch. They end before the range does with the batch that
    brings them to ``bytes_max``.

    ``first``: cells from its start on that were read already. ``left_out``: added_ids that are not
    shown, whatever the view says.
    """
    column = topic.view.column
    batches = _Batches(topic, shard, start, leader_epoch)
    position = start
    while position < end:
        found = _below(
            end, engine.scan(shard, position, end - position) if first is None else first
        )
        first = None
        piece: list[StoredCell] = []
        piece_bytes = 0
        for cell in found:
            if (
                column is None or cell.column_name == column or cell.column_name == ERASED_COLUMN
            ) and cell.added_id not in left_out:
                size = decoded_bytes_bound(cell.body)
                if piece and piece_bytes + size > _BATCH_BYTES:
                    batches.add(piece)
                    piece, piece_bytes = [], 0
                    if batches.record_bytes >= bytes_max:
                        batches.close(cell.added_id)
                        return batches.block
                piece.append(cell)
                piece_bytes += size
        batches.add(piece)
        position = found[-1].added_id + 1 if found else end
    batches.close(end)
    return batches.block


class _Batches:
    """Batches of the cells of a range that the topic's view shows. Bodies are decoded in pieces of
    a batch's size, so that a few more of them than a batch has are in memory at once."""

    def __init__(self, topic: Topic, shard: int, start: int, leader_epoch: int) -> None:
        self._topic = topic
        self._shard = shard
        self._start = start
        self._leader_epoch = leader_epoch
        self._cells: list[StoredCell] = []
        self._bodies: list[bytes] = []
        self._bytes = 0
        self._closed_bytes = 0
        self.block: Block = []

    @property
    def record_bytes(self) -> int:
        """Of the records, those of the open batch before they are compressed."""
        return self._closed_bytes + self._bytes

    def add(self, cells: Sequence[StoredCell]) -> None:
        """The next cells of the range; what the view leaves out of them has no record."""
        shown, bodies = self._topic.reader.read(cells)
        size = sum(map(len, bodies))
        if self._cells and self._bytes + size > _BATCH_BYTES:
            self.close(shown[0].added_id)
        self._cells += shown
        self._bodies += bodies
        self._bytes += size

    def close(self, end: int) -> None:
        """Ends the batch: it covers the offsets up to, not including, ``end``."""
        data = encode_record_batch(
            self._topic.event_format,
            self._shard,
            self._cells,
            self._bodies,
            base_offset=self._start,
            next_offset=end,
            leader_epoch=self._leader_epoch,
            compression=self._topic.compression,
        )
        self.block.append(Batch(self._start, end, data))
        self._closed_bytes += len(data)
        self._cells, self._bodies, self._bytes, self._start = [], [], 0, end


def _below(end: int, found: Sequence[StoredCell]) -> Sequence[StoredCell]:
    """Drops cells beyond the range: where ids are missing, a scan of as many cells as ids reaches
    there."""
    return (
        [cell for cell in found if cell.added_id < end]
        if found and found[-1].added_id >= end
        else found
    )
