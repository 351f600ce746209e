"""A process's shares in groups, of triggers or exports: joined with patience, and drained at the
end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from cellfeed.store.errors import CellfeedError, Unavailable
from cellfeed.store.repeated_warnings import RepeatedWarning

Joined = TypeVar("Joined")

JOIN_AGAIN_S: Final = 0.1
"""How long after a store or a coordinator could not be reached it is tried again, in seconds."""

_DRAIN_LOOK_S: Final = 0.01


class Drained(Protocol):
    """A share in a group. ``drain`` says whether nothing of it is under way any more; it raises
    CellfeedError."""

    def drain(self) -> bool: ...


def join(stop: threading.Event, joined: Callable[[], Joined], log: logging.Logger) -> Joined | None:
    """Waits until the group can be joined; None when asked to stop before."""
    waiting = RepeatedWarning(log)
    while not stop.is_set():
        try:
            return joined()
        except Unavailable as error:
            waiting.warn("the store or the coordinator cannot be reached just now: %s", error)
            stop.wait(JOIN_AGAIN_S)
    return None


def drain(shares: Sequence[Drained], drain_s: float, log: logging.Logger) -> bool:
    """Whether every share came to its end within ``drain_s`` seconds."""
    deadline_s = time.monotonic() + drain_s
    left = list(shares)
    while left and time.monotonic() < deadline_s:
        try:
            left = [share for share in left if not share.drain()]
        except CellfeedError as error:
            log.warning("the store or the coordinator cannot be reached just now: %s", error)
        time.sleep(_DRAIN_LOOK_S)
    return not left
