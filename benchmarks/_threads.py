"""Callers at the same time, a thread each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def in_threads(call: Callable[[int], None], count: int) -> float:
    """Calls ``call(caller)`` in ``count`` threads, and returns the seconds until the last has
    ended. Raises the first error."""
    failures: list[BaseException] = []

    def guarded(caller: int) -> None:
        try:
            call(caller)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(caller,)) for caller in range(count)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return time.perf_counter() - started
