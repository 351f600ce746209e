"""An outlet that somebody waits for, and the thread that answers its waiters."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from typing import Final, Protocol

from cellfeed.store.background import SupervisedThread
from cellfeed.store.cells.token import united
from cellfeed.store.errors import CellfeedError, StorageUnavailable, Unavailable
from cellfeed.store.waits.awaited import Watch
from cellfeed.store.waits.outlet_wait import Target, Wait, fail, looked
from cellfeed.store.waits.waiting import Find, Outlet, missing_places, part_of

POLL_FIRST_S: Final = 0.005

POLL_MAX_S: Final = 0.05
"""Pauses between two looks while no outlet has answered the watch. They grow by half, because an
outlet that is far behind stays so for a while."""

POLL_WOKEN_S: Final = 0.1
"""The pause where one has: a wake-up ends it, and a lost one costs so much."""

POLL_LAKE_S: Final = 1.0
"""The pause for a lake, whose table takes tens of milliseconds to look at. Its loader wakes."""

REST_MAX_S: Final = 0.05
"""Between two looks the thread rests as long as the first one took, at most so long: an outlet that
saves all the time takes half of a thread's time, not all of it."""

LINGER_S: Final = 3.0
"""How long a watch stays without waiters."""

FOUND_S: Final = 2.0
"""How often it is checked that an outlet still exists: its waiters hear so soon that it does
not."""

CLOSE_S: Final = 5.0
"""How long the end of a datastore waits for a look that is under way."""


class AllWaits(Protocol):
    """The waits of a process, as :class:`cellfeed.store.waits.outlet_watch.Waits` has them."""

    @property
    def lock(self) -> AbstractContextManager[object]: ...

    @property
    def find(self) -> Find | None: ...

    def lingers(self) -> bool:
        """Whether a watch without waiters may stay. The caller has the lock."""
        ...

    def forget(self, target: Target) -> None:
        """Nobody waits for the outlet any more. The caller has the lock."""
        ...


class WatchedOutlet:
    """An outlet that somebody waits for, and its thread. ``joined`` and ``left`` are called with
    the lock of all waits."""

    def __init__(self, waits: AllWaits, target: Target, watch: Watch) -> None:
        self.target = target
        self.waiting: dict[Wait, None] = {}
        """In the order in which they came."""
        self._waits = waits
        self._watch = watch
        self._gone: CellfeedError | None = None
        """Why the outlet was not found at the last check: it was deleted."""
        self._closing = False
        self._pause_s = POLL_FIRST_S
        self._linger_until_s = 0.0
        self._thread = SupervisedThread(f"wait-{target.kind}-{target.name}"[:60], self._run)
        self._thread.start()

    def joined(self, wait: Wait) -> None:
        self.waiting[wait] = None
        self._pause_s = POLL_FIRST_S
        self._watch.nudge()

    def left(self, wait: Wait) -> None:
        self.waiting.pop(wait, None)
        self._linger_until_s = time.monotonic() + LINGER_S

    def close(self) -> None:
        self._closing = True
        self._watch.nudge()
        self._thread.join(CLOSE_S)

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while (waiting := self._next_waiting()) is not None:
            if not waiting:
                self._watch.wait(LINGER_S / 3)
                continue
            begun_s = time.monotonic()
            try:
                self._check_outlet(begun_s)
                self._look(waiting)
            except Exception as error:  # a defect: its callers get it, and the thread lives on
                for wait in waiting:
                    fail(wait, error)
            time.sleep(min(REST_MAX_S, time.monotonic() - begun_s))
            pause_s = POLL_WOKEN_S if self._watch.is_answered else self._pause_s
            self._watch.wait(POLL_LAKE_S if self.target.kind == "lake" else pause_s)
            self._pause_s = min(POLL_MAX_S, self._pause_s * 1.5)

    def _next_waiting(self) -> list[Wait] | None:
        """The waits without an answer; None when the thread is to end."""
        with self._waits.lock:
            waiting = [each for each in self.waiting if not each.is_over]
            lingers = time.monotonic() < self._linger_until_s and self._waits.lingers()
            if not self._closing and (self.waiting or lingers):
                return waiting
            self._waits.forget(self.target)
        for each in waiting:
            fail(each, StorageUnavailable("the datastore was closed while this waited"))
        self._watch.close()
        return None

    def _check_outlet(self, now_s: float) -> None:
        find, (kind, name, _, found_at_s) = self._waits.find, self.target
        if find is not None and now_s >= found_at_s + FOUND_S:
            try:
                self.target, self._gone = Target(kind, name, find(kind, name), now_s), None
            except Unavailable:
                pass  # the look finds out as well, and says so
            except CellfeedError as error:
                self._gone = error
        with suppress(CellfeedError):
            self._watch.send_where_due(self.target.outlet.group())

    def _look(self, waiting: Sequence[Wait]) -> None:
        outlet = self.target.outlet
        shards = {each.shard for wait in waiting for each in wait.places}
        try:
            if self._gone is not None:
                raise self._gone
            positions = outlet.positions(shards)
        except Unavailable as error:
            for wait in waiting:
                wait.because = str(error)
                looked(wait)
            return
        except CellfeedError as error:
            for wait in waiting:
                fail(wait, error)
            return
        ready = []
        for wait in waiting:
            wait.missing, wait.because = missing_places(positions, wait.places), ""
            if wait.missing:
                looked(wait)
            else:
                ready.append(wait)
        if ready:
            self._answer(outlet, ready)

    def _answer(self, outlet: Outlet, ready: Sequence[Wait]) -> None:
        try:
            passed = outlet.passed(united(each for wait in ready for each in wait.places))
        except Unavailable as error:
            for wait in ready:
                wait.because = str(error)
                looked(wait)
        except CellfeedError as error:
            if len(ready) == 1:
                fail(ready[0], error)
            else:  # it may be for the places of some alone
                for wait in ready:
                    self._answer(outlet, [wait])
        else:
            for wait in ready:
                wait.passed = passed and part_of(passed, wait.places)
                looked(wait)
