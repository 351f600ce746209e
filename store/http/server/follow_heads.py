"""The heads of the logs for the followers at a worker: one look serves all of them.

While somebody follows, the worker listens to wake-ups, and looks at the change token every
``POLL_INTERVAL_S`` for those that were lost. Nothing is read while nobody follows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

from cellfeed.store.background import keep_running
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.errors import CellfeedError
from cellfeed.store.following.head_watch import HeadWatch
from cellfeed.store.following.heads import POLL_INTERVAL_S, LogHeads
from cellfeed.store.progress import Watch
from cellfeed.store.repeated_warnings import RepeatedWarning
from cellfeed.store.wakeups.datagrams import Listener


class FollowedHeads:
    """Of one event loop. ``because``: why the last look failed; empty where it did not."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = asyncio.Lock()
        self._followers = 0
        self._open: _Open | None = None
        self.because = ""

    @asynccontextmanager
    async def watch(self, shards: Iterable[int]) -> AsyncIterator[tuple[LogHeads, HeadWatch]]:
        """The heads, as read after the call, and a watch of these shards. Raises Unavailable."""
        async with self._lock:
            self._followers += 1
            if self._open is None:
                self._open = _Open(self._engine, self._looked)
                await self._open.begin()
            opened = self._open
        try:
            await opened.heads.refresh()
            watch = opened.heads.watch(shards)
            try:
                yield opened.heads, watch
            finally:
                watch.close()
        finally:
            async with self._lock:
                self._followers -= 1
                if not self._followers:
                    self._open = None
                    await opened.end()

    def _looked(self, because: str) -> None:
        self.because = because


class _Open:
    """The thread, listener and task while somebody follows. ``looked`` is called with the reason of
    each look that failed, and with nothing after one that did not."""

    def __init__(self, engine: Engine, looked: Callable[[str], object]) -> None:
        self._engine = engine
        self._looked = looked
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="follow-heads")
        self._listener: Listener | None = None
        self._task: asyncio.Task[None] | None = None
        self._watch = Watch("follow-heads", "loop")
        self._warning = RepeatedWarning(logging.getLogger("cellfeed.worker"))
        self.heads = LogHeads(engine, self._executor)

    async def begin(self) -> None:
        with suppress(CellfeedError):  # without a listener it polls
            self._listener = await self._in_thread(
                Listener, self._engine.state, f"followers-{uuid4().hex}"
            )
        if self._listener is not None:
            self._listener.shows = self.heads.watermark
            asyncio.get_running_loop().add_reader(self._listener.sock.fileno(), self._woken)
        self._task = asyncio.create_task(keep_running("follow-heads", self._poll))

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.sock.fileno())
            await self._in_thread(self._listener.close)
        self._executor.shutdown(wait=False)
        self._watch.close()

    def _woken(self) -> None:
        if self._listener is not None:
            self._listener.drain()
        self.heads.refresh_soon(self._cannot_read)

    async def _poll(self) -> None:
        seen: int | None = None
        while True:
            try:
                token = await self._in_thread(self._engine.change_token)
                if token != seen:
                    await self.heads.refresh()
                    seen = token
                if self._listener is not None:
                    await self._in_thread(self._listener.renew)
                self._looked("")
                self._watch.moved()
            except CellfeedError as error:
                self._cannot_read(error)
            await asyncio.sleep(POLL_INTERVAL_S)

    def _cannot_read(self, error: BaseException) -> None:
        self._looked(str(error))
        self._watch.waits(str(error))
        self._warning.warn("the logs cannot be followed just now: %s", error)

    async def _in_thread(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *arguments)
