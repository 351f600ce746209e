"""Blocking reads off the event loop: a few threads, a bounded queue, a deadline."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, ParamSpec, TypeVar

from store.errors import Overloaded, StorageUnavailable

READ_THREADS: Final = 8
"""Of reads that wait for a server: so many are under way, and one node that is slow does not hold up all of them."""

FILE_READ_THREADS: Final = 2
"""Of reads of SQLite files, which wait for nothing but the interpreter's lock, at every row: eight threads take twice the CPU of one. Two, so that
a small read need not wait for a large one."""

READS_WAITING_MAX: Final = 1_000
"""Reads waiting or running. Past that a read is refused as ``overloaded``."""

READ_TIMEOUT_S: Final = 10.0
"""After this a read is answered as ``storage_unavailable``; its thread is free again when the engine answers."""

P = ParamSpec("P")
T = TypeVar("T")
_Read = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class ReadPool:
    """Runs the datastore's blocking calls for the event loop. Its own, because a thread pool of the standard library costs several times as much a call."""

    def __init__(self, threads: int = READ_THREADS) -> None:
        self._threads = threads
        self._reads: SimpleQueue[_Read | None] = SimpleQueue()
        self._waiting = 0
        self._closed = False
        for number in range(threads):
            threading.Thread(target=self._work, name=f"read-{number}", daemon=True).start()

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The call's result. Raises its error, Overloaded, or StorageUnavailable after ``READ_TIMEOUT_S``."""
        if self._waiting >= READS_WAITING_MAX:
            raise Overloaded(f"{self._waiting} reads are waiting, at most {READS_WAITING_MAX} may; try again shortly")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._waiting += 1
        self._reads.put((loop, answer, partial(call, *args, **kwargs)))
        deadline = loop.call_later(READ_TIMEOUT_S, _time_out, answer)
        try:
            return await answer
        finally:
            deadline.cancel()

    def close(self) -> None:
        """Lets running reads end; waiting ones are dropped."""
        self._closed = True
        for _ in range(self._threads):
            self._reads.put(None)

    def _work(self) -> None:
        while (read := self._reads.get()) is not None:
            loop, answer, call = read
            result, error = None, None
            try:
                # Nobody waits any more for one that timed out in the queue, or whose caller has gone.
                if not answer.done() and not self._closed:
                    result = call()
            except BaseException as raised:
                error = raised
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._done, answer, result, error)

    def _done(self, answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._waiting -= 1
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)


def _time_out(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(StorageUnavailable(f"no answer from the storage within {READ_TIMEOUT_S} s"))
