"""The status that pages and metrics show: read when somebody asks, and at most every
``LOOK_EVERY_S`` seconds.

A look costs the store some listings. Nobody pays for them while no page is open.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from cellfeed.status.instance_status import InstanceStatus
from cellfeed.status.stuck import stuck
from cellfeed.status.stuck_part import Stuck

LOOK_EVERY_S: Final = 2.0
"""How long one look answers all pages."""

LOOK_SHARE: Final = 1 / 30
"""The part of a core that looks may take: with thousands of shards they come more seldom."""

WAIT_S: Final = 2.0
"""How long a page waits for a look. With thousands of shards one may take longer: then the page
shows the last one, and its age."""

REST_TIMES_MAX: Final = 3.0
"""Looks come at most so many times more seldom: faults are named within ten seconds."""

LOOKS_KEPT: Final = 300
"""Looks whose lag is kept: ten minutes."""


class Look(NamedTuple):
    """One look. ``at_s``: seconds since 1970 UTC. ``number``: counts them, from 1."""

    number: int
    at_s: float
    status: InstanceStatus
    standing: list[Stuck]


class Looks:
    """Any number of threads may ask. ``read``: reads the status once."""

    def __init__(
        self, read: Callable[[], InstanceStatus], *, every_s: float = LOOK_EVERY_S
    ) -> None:
        self._read = read
        self._every_s = every_s
        self._changed = threading.Condition()
        self._last = Look(0, 0.0, InstanceStatus([], [], storage_away="not looked at yet"), [])
        self._looked_at_s = float("-inf")
        self._rest_s = every_s
        self._looking = False
        self._lags: dict[str, deque[tuple[float, int]]] = {}

    def latest(self, *, wait: bool = True) -> Look:
        """The newest look. One that is older than its time has a new one made, for which this waits
        ``WAIT_S`` at most; not at all without ``wait``."""
        with self._changed:
            if time.monotonic() - self._looked_at_s > self._rest_s and not self._looking:
                self._looking = True
                threading.Thread(target=self._look, name="status-look", daemon=True).start()
            number = self._last.number
            if self._looking and wait:
                self._changed.wait_for(lambda: self._last.number > number, WAIT_S)
            return self._last

    def lags(self, group: str) -> list[tuple[float, int]]:
        """The cells or records that a group was behind: (seconds since 1970 UTC, how many), the
        earliest first."""
        with self._changed:
            return list(self._lags.get(group, ()))

    def _look(self) -> None:
        cpu_s = time.thread_time()
        try:
            found = self._read()
        except Exception as error:
            found = InstanceStatus([], [], storage_away=f"{type(error).__name__}: {error}")
        now_s = time.time()
        standing = stuck(found, int(now_s * 1e6))
        with self._changed:
            self._last = Look(self._last.number + 1, now_s, found, standing)
            self._looked_at_s = time.monotonic()
            times = (time.thread_time() - cpu_s) / LOOK_SHARE / LOOK_EVERY_S
            self._rest_s = self._every_s * min(max(1.0, times), REST_TIMES_MAX)
            self._looking = False
            self._keep(now_s, found)
            self._changed.notify_all()

    def _keep(self, now_s: float, found: InstanceStatus) -> None:
        if found.storage_away or found.coordination_away:
            return
        behind = {each.group: each.behind for each in found.groups}
        behind |= {each.group: each.cells for each in (*found.triggers, *found.exports)}
        for group in self._lags.keys() - behind.keys():
            del self._lags[group]
        for group, cells in behind.items():
            self._lags.setdefault(group, deque(maxlen=LOOKS_KEPT)).append((now_s, cells))
