"""Warnings about peers' acts, so that no peer can fill the disk with them."""

from __future__ import annotations

import asyncio
import logging


class LimitedWarnings:
    """At most ``warnings_max`` warnings in ``within_s`` seconds, counted from the first of them;
    those beyond are counted, and when the time is over one line has their number. Used on the event
    loop. A process that ends within that time does not log it."""

    def __init__(self, log: logging.Logger, what: str, warnings_max: int, within_s: float) -> None:
        """``what``: the counted things, in the line with their number."""
        self._log = log
        self._what = what
        self._warnings_max = warnings_max
        self._within_s = within_s
        self._warned = self._passed_over = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one in which the time runs; None while none does."""

    def warn(self, message: str, *arguments: object) -> None:
        """Writes the warning, or counts it."""
        loop = asyncio.get_running_loop()
        if (
            self._loop is not loop
        ):  # the first one of a time, or the loop of the last one ended before its time did
            self._loop = loop
            self._warned = self._passed_over = 0
            loop.call_later(self._within_s, self._begin_again)
        if self._warned < self._warnings_max:
            self._warned += 1
            self._log.warning(message, *arguments)
        else:
            self._passed_over += 1

    def _begin_again(self) -> None:
        self._loop = None
        if self._passed_over:
            self._log.warning(
                "%d more %s in the last %g s, not reported one by one",
                self._passed_over,
                self._what,
                self._within_s,
            )
