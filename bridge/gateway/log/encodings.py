"""Encodings under way: each piece of a log is read and encoded once, however many readers wait for
it.

When bodies of a log were erased, encodings of it under way are done again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from threading import Lock

from cellfeed.bridge.gateway.log.batch import Block
from cellfeed.bridge.gateway.log.block_files import BlockFiles
from cellfeed.bridge.gateway.log.encode import Piece, encode_pieces, encode_range
from cellfeed.bridge.gateway.topics.topics import Topic
from cellfeed.store.engines.contract.engine import Engine

PieceKey = tuple[str, int, int, int]
"""A topic's content, the shard, and the offsets from the third up to, not including, the fourth."""


class Encodings:
    """Used on the event loop; scans and encoding run on ``executor``."""

    def __init__(self, engine: Engine, executor: Executor, files: BlockFiles | None) -> None:
        self._engine = engine
        self._executor = executor
        self._files = files
        self._under_way: dict[PieceKey, asyncio.Future[Block]] = {}
        self._forgets: Counter[int] = Counter()
        self.encoded = 0
        """Pieces that were encoded since the start."""
        self._counting = Lock()

    def forgets(self, shard: int) -> int:
        """How often something of a shard was forgotten."""
        return self._forgets[shard]

    def forget(self, shard: int, start: int, end: int) -> None:
        """Cells with offsets from ``start`` up to, not including, ``end`` were erased: the next
        reader has them read again."""
        self._forgets[shard] += 1
        for piece in [
            piece
            for piece in self._under_way
            if piece[1] == shard and piece[2] < end and start < piece[3]
        ]:
            del self._under_way[piece]

    def is_under_way(self, key: PieceKey) -> bool:
        """Whether the piece is being read or encoded."""
        return key in self._under_way

    def together(self, pieces: Sequence[Piece], encoded: Callable[[int, Block], None]) -> None:
        """Begins all pieces in one go; they are done at the same moment. ``encoded`` gets the
        number of each and its block, but not where cells of the shard were forgotten meanwhile."""
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
            for number, new in enumerate(encoding.result()):
                if forgets[number] == self._forgets[pieces[number].shard]:
                    encoded(number, new)

        loop.run_in_executor(self._executor, encode_pieces, self._engine, pieces).add_done_callback(
            done
        )

    async def once(
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
            if future is None or future.done():  # one that ended just now may have failed
                loop = asyncio.get_running_loop()
                if self._files is not None and known is not None:
                    future = loop.run_in_executor(
                        self._executor,
                        self._read_or_encode,
                        self._files,
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

    def _begun(self, key: PieceKey, future: asyncio.Future[Block]) -> None:
        self._under_way[key] = future
        future.add_done_callback(
            lambda done: None if self._under_way.get(key) is not done else self._under_way.pop(key)
        )


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
