"""Reads of several clusters, made side by side: the answer is there when the slowest one is, where
one after the other it took all their times together.

**A read of one cluster has no hop**: the caller makes it. Of several it makes the first, and
threads of a small pool make the others meanwhile. Where no thread is free (a cluster stalls, and
all of them wait there), the caller makes them itself, one after the other. So nothing waits in a
queue, and a cluster that is away holds up nobody who does not ask it.

**Nothing is left behind.** The caller returns when every read has ended, also when one of them
fails. Each read ends within the time-outs of its nodes. So no thread and no connection is at work
for a call that is over. The caller gets the error of the first cluster in order that had one,
whichever was quicker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

FAN_OUT_THREADS: Final = 16
"""Reads that a process has under way beside those that callers make themselves: enough for the
eight read threads of a worker, of three clusters each. Each takes a connection."""

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class FanOut:
    """See the module. Any number of threads."""

    def __init__(self, threads: int = FAN_OUT_THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="fan-out")
        self._free = threading.BoundedSemaphore(threads)

    def each(self, groups: Mapping[K, V], read: Callable[[K, V], T]) -> list[T]:
        """``read(key, value)`` for every group, in their order. Raises the first error in that
        order."""
        reads = [partial(read, key, value) for key, value in groups.items()]
        if len(reads) < 2:
            return [each() for each in reads]
        begun = [None, *(self._begin(each) for each in reads[1:])]
        found: list[T] = []
        errors: list[Exception] = []
        for each, future in zip(reads, begun, strict=True):
            try:
                found.append(each() if future is None else future.result())
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return found

    def _begin(self, read: Callable[[], T]) -> Future[T] | None:
        """None where no thread is free."""
        if not self._free.acquire(blocking=False):
            return None
        try:
            return self._pool.submit(self._run, read)
        except RuntimeError:  # closed: the caller hears it of the cluster
            self._free.release()
            return None

    def _run(self, read: Callable[[], T]) -> T:
        try:
            return read()
        finally:
            self._free.release()

    def close(self) -> None:
        """Waits for reads under way; later ones are made by their callers."""
        self._pool.shutdown()
