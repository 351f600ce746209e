"""How one unit learns of looks at the logs: the exporter's main thread reports each look, the
unit's threads wait for the next one, or for one that found heads of its shards changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from cellfeed.bridge.export.limits import SAVE_EVERY_S
from cellfeed.bridge.export.pace import Pace


class UnitLooks:
    """``stop`` ends every wait, and so does an offset that ``offset_is_due`` says is to be saved.
    ``wanted`` is set when the unit waits for the next look."""

    def __init__(
        self,
        shards: Collection[int],
        wanted: threading.Event,
        stop: threading.Event,
        offset_is_due: Callable[[], bool],
    ) -> None:
        self._shards = frozenset(shards)
        self._wanted = wanted
        self._stop = stop
        self._offset_is_due = offset_is_due
        self._news = threading.Condition()
        self._looks = 0
        self.changes = 0
        """Looks that found heads of its shards changed. The heads have a change before it is
        counted here. So a unit that has read all logs to their ends reads again when this rises."""
        self.awaits_change = False
        self.pace = Pace()

    def note(self, changed: Collection[int], look_s: float) -> None:
        """Takes the result of a look at the logs, and wakes the thread that waits for it.
        ``changed``: shards whose heads changed. ``look_s``: the seconds that the look took."""
        with self._news:
            self._looks += 1
            self.pace.looked(look_s)
            if not self._shards.isdisjoint(changed):
                self.changes += 1
            elif self.awaits_change and not self._offset_is_due():
                self._wanted.set()
                return
            self._news.notify_all()

    def end_waits(self) -> None:
        """Wakes every thread that waits; ``stop`` is set."""
        with self._news:
            self._news.notify_all()

    def wait_for_change(self, changes: int) -> None:
        """Waits until more than ``changes`` looks found heads changed."""
        with self._news:
            self.awaits_change = True
            self._wait_until(lambda: self.changes > changes)
            self.awaits_change = False

    def wait_for_look(self) -> None:
        """Waits for the next look, also for one that finds no change."""
        with self._news:
            looks = self._looks
            self._wait_until(lambda: self._looks > looks)

    def _wait_until(self, has_come: Callable[[], bool]) -> None:
        """Waits, under the lock, at most as long as an offset may be behind."""
        if not has_come() and not self._stop.is_set():
            self._wanted.set()
            self._news.wait_for(
                lambda: has_come() or self._stop.is_set() or self._offset_is_due(), SAVE_EVERY_S
            )
