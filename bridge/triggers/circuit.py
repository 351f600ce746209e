"""Pauses a trigger in one worker when cells of many rows fail alike, until one of them runs.

When a provider is away, every cell fails in the same way, and retrying each would park them all.
So the worker counts the row keys of cells that failed with one type of error since a call last came
back well. At ``pause_rows`` of them the trigger **pauses** in this worker. It then **probes**: one
call at a time, of another shard each time, after waits that double from ``PROBE_FIRST_S`` to
``PROBE_LONGEST_S``. The first call that succeeds ends the pause.

A cell that makes way for the pause stays where it is: the offset is before it, and its tries are
remembered. So nothing is lost, and the order within a shard is the log's. A pause parks at most
``PARKED_MAX`` cells whose tries are used up: a few bad cells in front of good ones cannot hold a
trigger for ever. Parked cells are not tried again meanwhile.

Nothing of this is kept: a worker that is started again tries every shard, and pauses again after
``pause_rows`` failures.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

_log = logging.getLogger("cellfeed.triggers")

PROBE_FIRST_S: Final = 1.0
PROBE_LONGEST_S: Final = 30.0
"""Waits between two probes, seconds: how late an end of an outage is noticed at most."""

PARKED_MAX: Final = 5
"""Cells that one pause parks at most."""

PAUSES: Final = "pauses: "
"""Begins the reason of a worker that pauses."""


class Circuit:
    """Of one trigger in one worker. For any thread."""

    def __init__(
        self, group: str, pause_rows: int | None, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._group = group
        self._pause_rows = pause_rows
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._rows: dict[str, set[bytes]] = {}
        """By type of error the row keys that failed since a call last succeeded."""
        self._because: str | None = None
        self._probe_at_s = 0.0
        self._probe_wait_s = PROBE_FIRST_S
        self._may_still_park = 0

    @property
    def paused_because(self) -> str | None:
        """Why the trigger pauses here; None while it does not. Names no value of a body."""
        return self._because

    @property
    def probe_is_due(self) -> bool:
        return self._clock_s() >= self._probe_at_s

    def may_try(self) -> bool:
        """Whether a call may begin: always, but for a pause, where it is the next probe."""
        with self._lock:
            if self._because is None:
                return True
            now_s = self._clock_s()
            if now_s < self._probe_at_s:
                return False
            self._probe_at_s = now_s + self._probe_wait_s
            self._probe_wait_s = min(2 * self._probe_wait_s, PROBE_LONGEST_S)
            return True

    def failed(self, row_key: bytes, error: BaseException) -> None:
        """A cell of the log failed once more."""
        if self._pause_rows is None:
            return
        kind = type(error).__qualname__
        with self._lock:
            rows = self._rows.setdefault(kind, set())
            rows.add(row_key)
            if self._because is not None or len(rows) < self._pause_rows:
                return
            self._because = (
                f"{PAUSES}cells of {len(rows)} rows failed alike and none ran between them, with"
                f" {kind}; it tries one by itself, at least every {PROBE_LONGEST_S:.0f} s, and"
                " resumes when one runs; its log has the tracebacks"
            )
            self._probe_wait_s, self._may_still_park = PROBE_FIRST_S, PARKED_MAX
            self._probe_at_s = self._clock_s() + PROBE_FIRST_S
        _log.error("trigger %s %s", self._group, self._because)

    def succeeded(self) -> None:
        """A call succeeded."""
        if self._rows or self._because is not None:
            self._end("a cell ran")

    def may_park(self) -> bool:
        """Whether a cell whose tries are used up may be parked now."""
        with self._lock:
            if self._because is not None:
                self._may_still_park -= 1
                return self._may_still_park >= 0
            return True

    def nothing_waits(self) -> None:
        """No shard of this worker has a cell to run: nothing is left to probe with."""
        if self._because is not None:
            self._end("no cell waits here any more")

    def _end(self, why: str) -> None:
        with self._lock:
            was_paused, self._because = self._because is not None, None
            self._rows.clear()
        if was_paused:
            _log.warning("trigger %s resumes: %s", self._group, why)
