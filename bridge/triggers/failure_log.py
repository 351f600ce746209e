"""Errors that a trigger's function raised, in the worker's log: with tracebacks, and not without
end.

Every type of error is written when it first comes, and then once in ``WARN_EVERY_S`` seconds with
the number of those in between. The log is the worker's own: its texts may quote bodies, so keep it
short where rows are erased.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from cellfeed.store.repeated_warnings import RepeatedWarning

_log = logging.getLogger("cellfeed.triggers")

TEXT_MAX: Final = 4_000
"""Characters of a traceback, its end, in a line of the log."""

KINDS_MAX: Final = 20
"""Types of errors that are counted apart; further ones are one."""


class FailureLog:
    """Of one trigger in one worker. For any thread."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._lock = threading.Lock()
        self._kinds: dict[type[BaseException] | None, RepeatedWarning] = {}

    def failed(self, what: str, attempts: int, error: BaseException, text: str) -> None:
        """``what`` was called for and raised ``error``; ``text`` is its traceback."""
        with self._lock:
            kind = type(error)
            known = kind in self._kinds or len(self._kinds) < KINDS_MAX
            warning = self._kinds.setdefault(kind if known else None, RepeatedWarning(_log))
        warning.warn(
            "trigger %s: %s failed, try %d: %s",
            self._group,
            what,
            attempts,
            text[-TEXT_MAX:].rstrip(),
        )
