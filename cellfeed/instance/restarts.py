"""When a process that died may be started again."""

from __future__ import annotations

from typing import Final

RESTART_DELAY_MIN_S: Final = 0.2
RESTART_DELAY_MAX_S: Final = 5.0
"""From one start of a dying process to the next: twice as long each time. So one that cannot live
costs a tenth of a core (a start takes half a second). The cause may end just after a start, and all
works again ten seconds later (I21): this delay, a start, and a place in its group fit into that."""

STEADY_S: Final = 60.0
"""A process that has lived for this long is well again: its next restart comes at once, as the
first one did."""


class Restarts:
    """When one process may be started again. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._last_s = -STEADY_S
        self._delay_s = 0.0

    def is_due(self, now_s: float) -> bool:
        if now_s - self._last_s >= self._delay_s + STEADY_S:
            self._delay_s = 0.0
        return now_s - self._last_s >= self._delay_s

    def tried(self, now_s: float) -> None:
        self._last_s = now_s
        self._delay_s = min(max(2 * self._delay_s, RESTART_DELAY_MIN_S), RESTART_DELAY_MAX_S)
