"""A follower over HTTP for the task that iterates it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Self

from cellfeed.store import forks
from cellfeed.store.errors import InvalidRequest, Unavailable
from cellfeed.store.followed import SILENT_S, FollowedCell
from cellfeed.store.http.calls.asynchronous import Asynchronous
from cellfeed.store.http.calls.asynchronous_stream import AsynchronousStream
from cellfeed.store.http.calls.follower_parts import FollowerParts
from cellfeed.store.http.calls.follows import FollowCall
from cellfeed.store.http.calls.wire import AttemptFailed

_FOREIGN: list[AsynchronousStream] = []
"""Streams of a parent process, which are kept and never touched."""


class AsyncFollower(FollowerParts):
    """Iterates the cells behind a start with ``async for``, waits for new ones, and never ends by
    itself. It begins with the first cell asked for, or with ``async with``, which waits for the
    worker's word on where it begins. One task iterates. A cancelled ``anext`` loses no cell. After
    an error of Unavailable the next one tries again, from the same place.

    ``on_bookmark`` is called in the loop with the token, some seconds after places were passed
    without a cell to give.
    """

    def __init__(
        self,
        call: FollowCall,
        asynchronous: Asynchronous,
        on_bookmark: Callable[[str], object] | None,
        on_wait: Callable[[str], object] | None,
    ) -> None:
        super().__init__(call, on_bookmark, on_wait)
        self._asynchronous = asynchronous
        self._stream: AsynchronousStream | None = None
        self._owner: tuple[int, object] = 0, None

    @property
    def token(self) -> str:
        """The text to resume behind the last cell given. It also covers places passed since,
        without a cell of a column asked for. Raises InvalidRequest before the follower has
        begun."""
        token = self._call.token
        if token is None:
            raise InvalidRequest("the follower has not begun: enter it with 'async with' first")
        return str(token)

    def __aiter__(self) -> AsyncIterator[FollowedCell]:
        return self

    async def __anext__(self) -> FollowedCell:
        while not self._closed:
            if (cell := self._take()) is not None:
                return cell
            self._call_back()
            await self._receive()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Ends the iteration, also one that waits in another task."""
        self._closed = True
        self._drop()

    async def __aenter__(self) -> Self:
        try:
            while not self._call.has_begun and not self._closed:
                await self._receive()
        except BaseException:
            await self.aclose()
            raise
        self._call_back()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def _receive(self) -> None:
        """Reads lines, of a new stream where there is none."""
        owner = forks.generation, asyncio.get_running_loop()
        if self._stream is not None and self._owner != owner:
            if self._owner[0] != forks.generation:
                _FOREIGN.append(self._stream)
                self._stream = None
            self._drop()
        if self._stream is None:
            self._stream = await self._asynchronous.run(self._call.open())
            self._owner = owner
        stream = self._stream
        if self._closed or stream is None:
            self._drop()
            return
        try:
            self._call.feed(await stream.receive(time.monotonic() + SILENT_S))
            if not self._call.has_begun:
                self._call.take_start()
        except asyncio.CancelledError:
            raise  # the content that has come stays in the stream
        except (AttemptFailed, Unavailable) as failed:
            if not self._closed:
                self._failed(failed)
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
