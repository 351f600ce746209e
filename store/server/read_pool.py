"""Blocking reads off the event loop: a few threads, a bounded queue, a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

from store.errors import Overloaded, StorageUnavailable

READ_THREADS: Final = 8
"""SQLite reads hold no lock against each other; more threads than this only take turns on the cores."""

READS_WAITING_MAX: Final = 1_000
"""Reads waiting or running. Past that a read is refused as ``overloaded``."""

READ_TIMEOUT_S: Final = 10.0
"""After this a read is answered as ``storage_unavailable``; its thread is free again when the engine answers."""

P = ParamSpec("P")
T = TypeVar("T")


class ReadPool:
    """Runs the datastore's blocking calls for the event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="read")
        self._waiting = 0

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The call's result. Raises its error, Overloaded, or StorageUnavailable after ``READ_TIMEOUT_S``."""
        if self._waiting >= READS_WAITING_MAX:
            raise Overloaded(f"{self._waiting} reads are waiting, at most {READS_WAITING_MAX} may; try again shortly")
        self._waiting += 1
        future = self._threads.submit(call, *args, **kwargs)
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._done))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), READ_TIMEOUT_S)
        except TimeoutError:
            raise StorageUnavailable(f"no answer from the storage within {READ_TIMEOUT_S} s") from None

    def _done(self) -> None:
        self._waiting -= 1

    def close(self) -> None:
        """Lets running reads end; waiting ones are dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)
