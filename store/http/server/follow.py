"""The route that follows logs: an answer of NDJSON, until its reader leaves.

A follower holds no thread. It reads a piece, in the read pool, when heads have changed. It sends
the piece in small parts, each once the reader has taken the one before. So a slow reader keeps one
piece in the worker's memory. A reader that takes nothing is cut off as any other
(:mod:`cellfeed.store.http.server.connections`), and resumes with its token.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

import msgspec

from cellfeed.store.cells.cell import Cell, microseconds
from cellfeed.store.cells.token import Token
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import LogRange
from cellfeed.store.errors import (
    CellfeedError,
    InvalidRequest,
    Overloaded,
    StorageUnavailable,
    Unavailable,
)
from cellfeed.store.followed import BOOKMARK_S, EARLIEST, LATEST, Wanted, checked_wanted
from cellfeed.store.following.head_watch import HeadWatch
from cellfeed.store.following.heads import LogHeads
from cellfeed.store.following.reading import Piece, read_pieces
from cellfeed.store.following.start import check_token, followed_shards, start_positions
from cellfeed.store.following.state import FollowState
from cellfeed.store.http.follow_messages import FollowLine, FollowMessage
from cellfeed.store.http.messages import ErrorMessage, cell_message
from cellfeed.store.http.server.asgi import PeerGone, Receive, Scope, Send
from cellfeed.store.http.server.bodies import read_body
from cellfeed.store.http.server.callers import Callers, Watched, caller_of
from cellfeed.store.http.server.documents import message_from
from cellfeed.store.http.server.follow_heads import FollowedHeads
from cellfeed.store.http.server.query import location_from
from cellfeed.store.http.server.read_pool import ReadPool
from cellfeed.store.http.server.responses import media_type_of, start_stream
from cellfeed.store.limits import HTTP_BODY_BYTES_MAX

FOLLOWERS_MAX: Final = 64
"""Followers at one worker. Each may have a piece of the log in memory, some 6 MiB while it is sent.
Past that a follower is refused as ``overloaded``, and asks another worker."""

PART_BYTES_MAX: Final = 64 << 10
"""Bytes of lines sent at once: as many as a connection takes before it waits for its reader."""

LOCATED_SHARDS: Final = 64
"""Shards in which one read finds a moment: on a server each takes some round trips."""

_encode_lines: Final = msgspec.json.Encoder().encode_lines


class FollowRoute:
    """Handler of ``POST /v1/{datastore}/follow``, as bare ASGI. ``closing`` is set when the worker
    is to end."""

    def __init__(
        self, datastore: Datastore, reads: ReadPool, closing: asyncio.Event, callers: Callers
    ) -> None:
        self._callers = callers
        self._datastore = datastore
        self._reads = reads
        self._closing = closing
        self._heads: FollowedHeads | None = None
        self.followers = 0
        """Followers at present."""

    async def follow(self, scope: Scope, receive: Receive, send: Send) -> None:
        """200 with lines, once the start is known, or the error's own status."""
        media_type = media_type_of(scope)
        content = await read_body(scope, receive, HTTP_BODY_BYTES_MAX)
        asked = _wanted(message_from(content, media_type, FollowMessage))
        engine = self._datastore.engine
        check_token(asked, engine.history.history_id, engine.shards)
        shards = followed_shards(asked, engine.shards)
        self._heads = self._heads or FollowedHeads(engine)
        columns = asked.columns
        read = self._callers.watched(caller_of(scope), lambda each: each.check_read(columns))
        with read as watched, self._counted():
            async with self._heads.watch(shards) as (heads, watch):
                state = await self._begun(asked, list(shards), heads)
                await start_stream(send)
                await self._stream(state, asked, heads, watch, watched, receive, send)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self.followers >= FOLLOWERS_MAX:
            raise Overloaded(
                f"{FOLLOWERS_MAX} followers are at this worker, which is the most allowed; follow"
                " at another one"
            )
        self.followers += 1
        try:
            yield
        finally:
            self.followers -= 1

    async def _begun(self, asked: Wanted, shards: list[int], heads: LogHeads) -> FollowState:
        located: dict[int, int] = {}
        if isinstance(asked.start, datetime):
            at_us = microseconds(asked.start)
            for first in range(0, len(shards), LOCATED_SHARDS):
                some = shards[first : first + LOCATED_SHARDS]
                located |= await self._reads.run(self._located, some, at_us)
        found = {shard: heads[shard] for shard in shards}
        state = FollowState(start_positions(asked, found, lambda shard, _: located[shard]))
        state.look(found)
        return state

    def _located(self, shards: Sequence[int], at_us: int) -> dict[int, int]:
        return {shard: self._datastore.engine.locate(shard, at_us) for shard in shards}

    async def _stream(
        self,
        state: FollowState,
        asked: Wanted,
        heads: LogHeads,
        watch: HeadWatch,
        watched: Watched,
        receive: Receive,
        send: Send,
    ) -> None:
        ends = [
            asyncio.ensure_future(receive()),  # the request is whole: it says when the peer is gone
            asyncio.ensure_future(self._closing.wait()),
            asyncio.ensure_future(watched.ended.wait()),
        ]
        for end in ends:
            end.add_done_callback(lambda _: watch.wake())
        lines = _Lines(send, self._datastore.history_id)
        try:
            await lines.bookmark(state.positions, "")
            await self._follow(state, asked, heads, watch, watched, lines, ends)
        finally:
            for end in ends:
                end.cancel()

    async def _follow(
        self,
        state: FollowState,
        asked: Wanted,
        heads: LogHeads,
        watch: HeadWatch,
        watched: Watched,
        lines: _Lines,
        ends: Sequence[asyncio.Future[Any]],
    ) -> None:
        gone, closing, _ = ends
        try:
            while True:
                if gone.done():
                    raise PeerGone
                if closing.done():
                    raise StorageUnavailable("the worker is closing; follow at another one")
                if watched.error is not None:
                    raise watched.error
                state.look({shard: heads[shard] for shard in watch.take()})
                ranges = state.ranges(time.monotonic())
                if ranges:
                    pieces = await self._pieces(ranges, asked)
                    for _, cells in state.take(pieces, time.monotonic()):
                        if watched.error is not None:
                            raise watched.error
                        await lines.cells(cells)
                    if state.failed is not None:
                        raise state.failed
                if lines.bookmark_in_s() <= 0:
                    because = state.because or (self._heads.because if self._heads else "")
                    await lines.bookmark(state.bookmark(), because)
                if not ranges:
                    heads.is_read()
                    await watch.wait(state.wait_s(time.monotonic(), lines.bookmark_in_s()))
        except CellfeedError as error:
            await lines.error(error)

    async def _pieces(self, ranges: Sequence[LogRange], asked: Wanted) -> list[Piece]:
        try:
            return await self._reads.run(read_pieces, self._datastore.engine, ranges, asked.columns)
        except Unavailable as error:  # the pool is full, or the storage hangs
            return [Piece(each.shard, [], each.location, error) for each in ranges]


class _Lines:
    """The lines of one answer."""

    def __init__(self, send: Send, history: str) -> None:
        self._send = send
        self._history = history
        self._bookmark_at_s = 0.0

    def bookmark_in_s(self) -> float:
        return self._bookmark_at_s - time.monotonic()

    async def cells(self, cells: Sequence[Cell]) -> None:
        content = lines_of(cells)
        for first in range(0, len(content), PART_BYTES_MAX):
            await self._write(content[first : first + PART_BYTES_MAX])

    async def bookmark(self, positions: Mapping[int, int], because: str) -> None:
        self._bookmark_at_s = time.monotonic() + BOOKMARK_S
        await self._write(lines_of([], positions, self._history, because))

    async def error(self, error: CellfeedError) -> None:
        message = ErrorMessage(error.code, str(error), error.retriable, error.definite)
        await self._write(_encode_lines([FollowLine(error=message)]))
        await self._send({"type": "http.response.body", "body": b""})

    async def _write(self, content: bytes) -> None:
        await self._send({"type": "http.response.body", "body": content, "more_body": True})


def lines_of(
    cells: Iterable[Cell],
    bookmark: Mapping[int, int] | None = None,
    history: str = "",
    because: str = "",
) -> bytes:
    """The lines of cells, then that of a bookmark at these positions, if there is to be one."""
    lines = [FollowLine(cell=cell_message(cell)) for cell in cells]
    if bookmark is not None:
        token = str(Token.passed(history, bookmark))
        lines.append(FollowLine(bookmark=token, because=because))
    return _encode_lines(lines)


def _wanted(message: FollowMessage) -> Wanted:
    if message.token is not None:
        if message.start != LATEST:
            raise InvalidRequest("a follower begins with a token or with start, not with both")
        start: object = Token.parse(message.token)
    elif message.start in (LATEST, EARLIEST):
        start = message.start
    else:
        start = location_from(message.start)
        if not isinstance(start, datetime):
            raise InvalidRequest(
                f"start {ascii(message.start)[:80]} is an added_id, which has a meaning in one"
                f" shard only; give {LATEST!r}, {EARLIEST!r}, a timestamp, or a token"
            )
    return checked_wanted(message.columns, message.shards, start)
