"""Warnings about repeated attempts, so that a server that is away does not fill the disk with
them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

WARN_EVERY_S: Final = 5.0
"""How often such a warning is written, in seconds: each shard or put repeats the attempt many times
a second."""


class RepeatedWarning:
    """The first one is written, and then one in ``WARN_EVERY_S`` seconds, with the number of those
    in between. For any thread."""

    def __init__(self, log: logging.Logger, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._warned_at_s = float("-inf")
        self._passed_over = 0

    def warn(self, message: str, *arguments: object, exc_info: BaseException | None = None) -> None:
        """Writes the warning, with the traceback of the error given, or counts it."""
        with self._lock:
            now_s = self._clock_s()
            if now_s - self._warned_at_s < WARN_EVERY_S:
                self._passed_over += 1
                return
            passed_over, self._passed_over, self._warned_at_s = self._passed_over, 0, now_s
        if passed_over:
            message, arguments = (
                f"{message} (and %d times since the last such line)",
                (*arguments, passed_over),
            )
        self._log.warning(message, *arguments, exc_info=exc_info)
