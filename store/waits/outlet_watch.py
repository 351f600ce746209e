"""The waits of a process. Each outlet that somebody waits for has a thread, which reads its
positions and answers all of its waiters. It looks at wake-ups
(:mod:`cellfeed.store.waits.awaited`), and polls.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from cellfeed.store import forks
from cellfeed.store.cells.token import Token
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import InvalidRequest, Overloaded, StorageUnavailable
from cellfeed.store.waits.awaited import Watch
from cellfeed.store.waits.outlet_wait import Target, Wait
from cellfeed.store.waits.waiting import Find, Kind
from cellfeed.store.waits.watched_outlet import FOUND_S, WatchedOutlet

WAITERS_MAX: Final = 256
"""Callers that wait in one process at a time: a quarter of the requests that a worker answers at
once. Past that a wait is refused as ``overloaded``."""

PLACES_MAX: Final = 65_536
"""Ranges of places that are waited for in one process at a time, some 200 bytes each. A token has
one for each shard; each look compares all of them, in some 20 ms. Past that a wait is refused as
``overloaded``, unless it is the only one."""


LINGERING_MAX: Final = 16
"""Watches without waiters in one process."""


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
        self.watched: dict[tuple[Kind, str], WatchedOutlet] = {}
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

    def _begin(self, target: Target, wait: Wait) -> WatchedOutlet:
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

    def _new(self, target: Target) -> WatchedOutlet:
        try:
            return WatchedOutlet(self, target, Watch(self._state))
        except OSError as error:
            raise Overloaded(f"no socket to wait with is to be had: {error}") from None

    def lingers(self) -> bool:
        """Whether a watch without waiters may stay. The caller has the lock."""
        return sum(not each.waiting for each in self.watched.values()) <= LINGERING_MAX

    def forget(self, target: Target) -> None:
        """Nobody waits for the outlet any more. The caller has the lock."""
        self.watched.pop((target.kind, target.name), None)

    def close(self) -> None:
        """Ends every wait as ``storage_unavailable``."""
        if self._generation != forks.generation:
            return
        with self.lock:
            self._closed = True
            watched = list(self.watched.values())
        for each in watched:
            each.close()
