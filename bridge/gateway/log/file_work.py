"""The thread that makes all changes of files of kept blocks, one after the other."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final

from cellfeed.store.background import SupervisedThread

_log = logging.getLogger("cellfeed.gateway")
_WARN_S: Final = 60.0
"""Between two warnings of files that cannot be written."""


class FileWork:
    """Any thread may add work. ``begin`` runs first in the thread, and says whether there is
    anything to work on; it gets a function that waits so many seconds for the end. ``failed`` is
    called when work has failed."""

    def __init__(
        self, begin: Callable[[Callable[[float], bool]], bool], failed: Callable[[], None]
    ) -> None:
        self._begin = begin
        self._failed = failed
        self._news = threading.Condition()
        self._work: deque[tuple[int, Callable[[], None]]] = deque()
        """Each with the bytes that wait in it."""
        self.waiting_bytes = 0
        self.is_closing = False
        self._warned_s = -_WARN_S
        # Not restarted: a forgotten block must not be found again in the folder. Without it blocks
        # are kept in memory alone.
        self._thread = SupervisedThread("block-files", self._run, restarts=False)
        self._thread.start()

    def add(self, work: Callable[[], None], size: int = 0) -> None:
        """Has it done soon; ``size`` bytes wait until then."""
        with self._news:
            self._work.append((size, work))
            self.waiting_bytes += size
            self._news.notify_all()

    def close(self) -> None:
        """Does the waiting work and ends the thread."""
        with self._news:
            self.is_closing = True
            self._news.notify_all()
        self._thread.join()

    def _run(self) -> None:
        if not self._begin(self._closes_within):
            return
        while True:
            with self._news:
                self._news.wait_for(lambda: self._work or self.is_closing)
                if not self._work:
                    return
                size, work = self._work.popleft()
                self.waiting_bytes -= size
            try:
                work()
            except Exception as error:
                self._failed()
                if monotonic() - self._warned_s >= _WARN_S:
                    self._warned_s = monotonic()
                    _log.warning("kept blocks cannot be written just now: %s", error)

    def _closes_within(self, wait_s: float) -> bool:
        with self._news:
            return self._news.wait_for(lambda: self.is_closing, wait_s)
