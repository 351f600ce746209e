"""A few threads that run given tasks, and never keep a process from ending.

``concurrent.futures.ThreadPoolExecutor`` waits for its threads when the interpreter ends. A trigger
function that hangs would keep its worker from ever stopping; these are daemon threads, so that it
cannot.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from cellfeed.store.background import SupervisedThread

_END_S: Final = 1.0
"""How long :meth:`WorkThreads.close` waits for a thread to finish its task."""

_Task = tuple[Callable[[], None], "Future[None]"]


class WorkThreads:
    """A pool of daemon threads."""

    def __init__(self, count: int) -> None:
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._threads = [
            SupervisedThread(f"trigger-{number}", self._work) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, task: Callable[[], None]) -> Future[None]:
        """Queues a task; the future gets its exception, of any kind."""
        done: Future[None] = Future()
        self._tasks.put((task, done))
        return done

    def close(self) -> None:
        """Ends the threads that are idle; one that hangs is left behind."""
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(_END_S)

    def _work(self) -> None:
        while (next_task := self._tasks.get()) is not None:
            task, done = next_task
            try:
                task()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)
