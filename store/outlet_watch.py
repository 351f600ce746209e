"""The waits of a process. Each outlet that somebody waits for has a thread, which reads its
positions and answers all of its waiters. It looks at wake-ups (:mod:`cellfeed.store.awaited`), and
polls.

A look reads the positions of the shards that are waited for, once for all waiters. Those whose
places are passed get their answers from one further look, which reads the outcome of all of them at
one moment. So a look costs the same for one waiter and for hundreds.

Each waiter gets a look that begins behind its call, also with no time to wait. The thread ends
``LINGER_S`` behind the last waiter. So waits one after the other share a thread, a watch and the
knowledge that the outlet exists. Nothing is read while nobody waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from cellfeed.store import forks
from cellfeed.store.awaited import Watch
from cellfeed.store.background import SupervisedThread
from cellfeed.store.cells.token import Places, Token, united
from cellfeed.store.engines.contract.engine import StateTable
from cellfeed.store.errors import (
    CellfeedError,
    InvalidRequest,
    Overloaded,
    StorageUnavailable,
    Unavailable,
)
from cellfeed.store.waiting import (
    Find,
    Kind,
    MissingPlace,
    Outlet,
    Passed,
    missing_places,
    part_of,
    time_over,
)

WAITERS_MAX: Final = 256
"""Callers that wait in one process at a time: a quarter of the requests that a worker answers at
once. Past that a wait is refused as ``overloaded``."""

PLACES_MAX: Final = 65_536
"""Ranges of places that are waited for in one process at a time, some 200 bytes each. A token has
one for each shard; each look compares all of them, in some 20 ms. Past that a wait is refused as
``overloaded``, unless it is the only one."""

POLL_FIRST_S: Final = 0.005
POLL_MAX_S: Final = 0.05
"""Pauses between two looks while no outlet has answered the watch. They grow by half, because an
outlet that is far behind stays so for a while."""

POLL_WOKEN_S: Final = 0.1
"""The pause where one has: a wake-up ends it, and a lost one costs so much."""

REST_MAX_S: Final = 0.05
"""Between two looks the thread rests as long as the first one took, at most so long: an outlet that
saves all the time takes half of a thread's time, not all of it."""

LINGER_S: Final = 3.0
"""How long a watch stays without waiters."""

LINGERING_MAX: Final = 16
"""Watches without waiters in one process."""

FOUND_S: Final = 2.0
"""How often it is checked that an outlet still exists: its waiters hear so soon that it does
not."""

CLOSE_S: Final = 5.0
"""How long the end of a datastore waits for a look that is under way."""

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


class Waits:
    """The waits in this process. Any number of threads. ``find`` is given by the program that
    opened the datastore, if it has the coordination."""

    def __init__(
        self, state: StateTable, history: Callable[[], str], shards: Callable[[], int]
    ) -> None:
        self._state = state
        self._history = history
        self._shards = shards
        self.lock = threading.Lock()
        self.waiters = 0
        """How many wait now."""
        self._places = 0
        self.watched: dict[tuple[Kind, str], _Watched] = {}
        """The outlets that somebody waits for, or did a moment ago."""
        self._closed = False
        self._generation = forks.generation
        self.find: Find | None = None

    def target(self, token: Token, kind: Kind, name: str) -> Target:
        """The outlet, when the token is one of this store. Reads the state. Raises InvalidRequest,
        NotFound, OtherHistory, Unavailable."""
        token.check(self._history(), self._shards())
        if self._generation != forks.generation:
            raise StorageUnavailable(
                "this process was forked since the datastore was opened: open it again to wait here"
            )
        if self.find is None:
            raise InvalidRequest(
                "wait_for: this datastore was opened without the coordination that knows how far"
                " its outlets are"
            )
        known = self.watched.get((kind, name))
        if known is not None and time.monotonic() < known.target.found_at_s + FOUND_S:
            return known.target
        return Target(kind, name, self.find(kind, name), time.monotonic())

    @contextmanager
    def at(self, target: Target, token: Token, notify: Callable[[], object]) -> Iterator[Wait]:
        """One wait. Blocks for nothing. Raises Overloaded, StorageUnavailable."""
        wait = Wait(token.places, notify)
        watched = self._begin(target, wait)
        try:
            yield wait
        finally:
            with self.lock:
                self.waiters -= 1
                self._places -= len(wait.places)
                watched.left(wait)

    def _begin(self, target: Target, wait: Wait) -> _Watched:
        with self.lock:
            if self._closed:
                raise StorageUnavailable("the datastore is closed: nobody can wait here")
            if self.waiters >= WAITERS_MAX:
                raise Overloaded(
                    f"{WAITERS_MAX} callers wait here, which is the most allowed; try again shortly"
                )
            if self.waiters and self._places + len(wait.places) > PLACES_MAX:
                raise Overloaded(
                    f"{self._places} ranges of places are waited for here, and this token has"
                    f" {len(wait.places)}; at most {PLACES_MAX} are allowed: try again shortly"
                )
            key = target.kind, target.name
            if (watched := self.watched.get(key)) is None:
                watched = self.watched[key] = self._new(target)
            self.waiters += 1
            self._places += len(wait.places)
            watched.joined(wait)
            return watched

    def _new(self, target: Target) -> _Watched:
        try:
            return _Watched(self, target, Watch(self._state))
        except OSError as error:
            raise Overloaded(f"no socket to wait with is to be had: {error}") from None

    def lingers(self) -> bool:
        """Whether a watch without waiters may stay. The caller has the lock."""
        return sum(not each.waiting for each in self.watched.values()) <= LINGERING_MAX

    def close(self) -> None:
        """Ends every wait as ``storage_unavailable``."""
        if self._generation != forks.generation:
            return
        with self.lock:
            self._closed = True
            watched = list(self.watched.values())
        for each in watched:
            each.close()


class _Watched:
    """An outlet that somebody waits for, and its thread. ``joined`` and ``left`` are called with
    the lock of all waits."""

    def __init__(self, waits: Waits, target: Target, watch: Watch) -> None:
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
                    _fail(wait, error)
            time.sleep(min(REST_MAX_S, time.monotonic() - begun_s))
            self._watch.wait(POLL_WOKEN_S if self._watch.is_answered else self._pause_s)
            self._pause_s = min(POLL_MAX_S, self._pause_s * 1.5)

    def _next_waiting(self) -> list[Wait] | None:
        """The waits without an answer; None when the thread is to end."""
        with self._waits.lock:
            waiting = [each for each in self.waiting if not each.is_over]
            lingers = time.monotonic() < self._linger_until_s and self._waits.lingers()
            if not self._closing and (self.waiting or lingers):
                return waiting
            self._waits.watched.pop((self.target.kind, self.target.name), None)
        for each in waiting:
            _fail(each, StorageUnavailable("the datastore was closed while this waited"))
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
                _looked(wait)
            return
        except CellfeedError as error:
            for wait in waiting:
                _fail(wait, error)
            return
        ready = []
        for wait in waiting:
            wait.missing, wait.because = missing_places(positions, wait.places), ""
            if wait.missing:
                _looked(wait)
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
                _looked(wait)
        except CellfeedError as error:
            if len(ready) == 1:
                _fail(ready[0], error)
            else:  # it may be for the places of some alone
                for wait in ready:
                    self._answer(outlet, [wait])
        else:
            for wait in ready:
                wait.passed = passed and part_of(passed, wait.places)
                _looked(wait)


def _looked(wait: Wait) -> None:
    first, wait.looked = not wait.looked, True
    if first or wait.is_over:
        with suppress(RuntimeError):  # the caller's event loop has ended
            wait.notify()


def _fail(wait: Wait, error: Exception) -> None:
    wait.error = error
    _looked(wait)


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
