"""One wait for an outlet, by one caller."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from cellfeed.store.cells.token import Places
from cellfeed.store.waits.waiting import Kind, MissingPlace, Outlet, Passed, time_over

FIRST_LOOK_S: Final = 1.0
"""How long a caller without time waits for its only look."""


class Target(NamedTuple):
    """The outlet of a wait, as it was found at a time of the monotonic clock, in seconds."""

    kind: Kind
    name: str
    outlet: Outlet
    found_at_s: float


class Wait:
    """One wait, by one caller, which ``notify`` has look here: after the first look, with an answer
    or an error, in the watch's thread."""

    def __init__(self, places: Sequence[Places], notify: Callable[[], object]) -> None:
        self.places = places
        self.notify = notify
        self.looked = False
        """Whether there was a look since it began."""
        self.passed: Passed | None = None
        self.error: Exception | None = None
        self.missing: Sequence[MissingPlace] = ()
        """The shards that were not passed at the last look."""
        self.because = ""
        """Why the last look failed; empty where it did not."""

    @property
    def is_over(self) -> bool:
        return self.passed is not None or self.error is not None


def looked(wait: Wait) -> None:
    first, wait.looked = not wait.looked, True
    if first or wait.is_over:
        with suppress(RuntimeError):  # the caller's event loop has ended
            wait.notify()


def fail(wait: Wait, error: Exception) -> None:
    wait.error = error
    looked(wait)


def blocking_answer(wait: Wait, target: Target, event: threading.Event, timeout_s: float) -> Passed:
    """The answer; ``event`` is set by the wait. Raises WaitTimedOut, and the error of the wait."""
    deadline_s = time.monotonic() + timeout_s
    event.wait(max(timeout_s, FIRST_LOOK_S))
    while not wait.is_over and (left_s := deadline_s - time.monotonic()) > 0:
        event.clear()
        if not wait.is_over:
            event.wait(left_s)
    if wait.error is not None:
        raise wait.error
    if wait.passed is None:
        raise time_over(target.outlet.title, wait.missing, wait.because, timeout_s)
    return wait.passed
