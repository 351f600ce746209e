"""A circuit breaker per storage node: calls to a node that does not answer fail at once instead of
each waiting for its time-out.

Closed, it lets everything through and counts failures in a row. ``FAILURES_TO_OPEN`` of them open
it; while open, calls are refused. After a wait that doubles up to ``OPEN_MAX_S`` one call is let
through to try; its success closes the breaker, its failure opens it for the next wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

FAILURES_TO_OPEN: Final = 2
"""Failures in a row that open the breaker: one may be a connection that the server had closed."""

OPEN_FIRST_S: Final = 0.25
"""First wait before a node is tried again, in seconds."""

OPEN_MAX_S: Final = 2.0
"""Longest wait: how much later than it could a node that is back is noticed."""


class Breaker:
    """Thread-safe. ``clock_s`` is a monotonic clock in seconds."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._failures = 0
        self._wait_s = OPEN_FIRST_S
        self._try_at_s: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether calls are refused; one that is due to be tried counts as refused until it
        succeeds."""
        return self._try_at_s is not None

    def allows(self) -> bool:
        """Whether a call may be made now. Of the callers that ask while the breaker is open one is
        let through per wait."""
        with self._lock:
            if self._try_at_s is None:
                return True
            now_s = self._clock_s()
            if now_s < self._try_at_s:
                return False
            self._try_at_s = now_s + self._wait_s
            return True

    def succeeded(self) -> None:
        if self._failures == 0:
            return
        with self._lock:
            self._failures = 0
            self._wait_s = OPEN_FIRST_S
            self._try_at_s = None

    def failed(self) -> None:
        with self._lock:
            self._failures += 1
            if self._failures >= FAILURES_TO_OPEN:
                if self._try_at_s is not None:
                    self._wait_s = min(2 * self._wait_s, OPEN_MAX_S)
                self._try_at_s = self._clock_s() + self._wait_s
