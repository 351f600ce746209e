"""Triggers that are coroutine functions: one event loop for each process runs their coroutines.

A shard's thread waits for the coroutine of its cell, as it waits for a plain function. So the order
within a shard, tries, time-outs and parking are those of plain functions, and coroutines of
different shards run side by side. The loop is made for the first one and lives as long as the
process. So sessions and pools that a program keeps stay with it.

Any end of a coroutine is the end of its call: also ``SystemExit``, which would end the loop
otherwise, and a cancelled task.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import FrameType
from typing import Any, Final

from cellfeed.store import forks
from cellfeed.store.background import SupervisedThread

STORE_THREADS: Final = 32
"""Threads for the calls of the store, and for ``asyncio.to_thread``: as many of them wait for a
server at once."""

_log: Final = logging.getLogger("cellfeed.triggers")


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether calls of the function give coroutines: also through a partial, a decorator with
    ``functools.wraps``, or a callable object."""
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    called = type(function).__call__  # that of a callable object is found here
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def finished(result: object) -> object:
    """The result of a function, or of the coroutine that it gave, once that has ended. Its errors
    pass through. Called in a shard's thread."""
    if not inspect.iscoroutine(result):
        return result
    waiting = threading.get_ident()
    _under_way[waiting] = result
    try:
        return _loop().run(result)
    finally:
        del _under_way[waiting]


def stack_under_way(thread_id: int) -> str:
    """Where the coroutine is that a thread waits for, as text; empty where it waits for none."""
    awaited: Any = _under_way.get(thread_id)
    frames: list[tuple[FrameType, int]] = []
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        frames.append((frame, frame.f_lineno))
        awaited = awaited.cr_await
    return "".join(traceback.StackSummary.extract(iter(frames)).format())


class _Loop:
    """The loop, on a thread of its own."""

    def __init__(self) -> None:
        self.generation = forks.generation
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(
            ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="trigger-store")
        )
        SupervisedThread("trigger-loop", self._run).start()

    def run(self, coroutine: Coroutine[Any, Any, object]) -> object:
        ended: Future[object] = Future()

        async def run() -> None:
            try:
                ended.set_result(await coroutine)
            except BaseException as error:
                ended.set_exception(error)

        def never_begun(_: Future[None]) -> None:
            if not ended.done():
                coroutine.close()
                ended.set_exception(asyncio.CancelledError("its task was cancelled"))

        asyncio.run_coroutine_threadsafe(run(), self._loop).add_done_callback(never_begun)
        return ended.result()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while True:
            try:
                self._loop.run_forever()
            except BaseException:  # of a task that a program began by itself; the others continue
                _log.exception("a task in the loop of the triggers has tried to end it")


_lock: Final = threading.Lock()
_running: list[_Loop] = []
_under_way: dict[int, object] = {}
"""By thread, the coroutine that it waits for."""


def _loop() -> _Loop:
    with _lock:
        if not _running or _running[0].generation != forks.generation:
            _running[:] = [_Loop()]
        return _running[0]
