"""Waiting until an outlet has passed the places of puts.

An outlet follows the logs: a trigger, an index, a consumer group at a gateway, an export. Its
position in a shard is the next added_id that it will take. Ids are in commit order, so an outlet
whose position is above a place has dealt with the cell there. It has handled the cell, parked it,
or was moved past it by hand, and the answer says which.

All waiters for one outlet share its positions: they are read at most every ``PAUSE_FIRST_S``, by
one thread. Nothing is read while nobody waits.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, Protocol, TypedDict

import msgspec

from cellfeed.store.cells.token import Places, Token
from cellfeed.store.errors import InvalidRequest, Overloaded, Unavailable, WaitTimedOut

Kind = Literal["trigger", "index", "group", "export"]

KINDS: Final[tuple[Kind, ...]] = ("trigger", "index", "group", "export")

TIMEOUT_S: Final = 5.0
"""How long a caller without a time-out of its own waits: longer than a healthy outlet is behind."""

WAIT_S_MAX: Final = 3_600.0
"""The longest wait, in seconds. Callers that wait longer should read the lag instead."""

LONG_POLL_S_MAX: Final = 10.0
"""The longest that a worker holds one request: a client whose worker hangs asks another one soon
after."""

WAITERS_MAX: Final = 256
"""Callers that wait in one process at a time: a quarter of the requests that a worker answers at
once. Past that a wait is refused as ``overloaded``."""

PAUSE_FIRST_S: Final = 0.005
PAUSE_MAX_S: Final = 0.05
"""Pauses between two looks at an outlet's positions. They grow by half, because an outlet that is
far behind stays so for a while."""

_MISSING_SHOWN: Final = 3


class WaitOptions(TypedDict, total=False):
    """The keywords of ``wait_for``: exactly one outlet by its name, and how long to wait."""

    trigger: str | None
    index: str | None
    group: str | None
    export: str | None
    timeout_s: float


class Place(msgspec.Struct, frozen=True):
    """The place of one cell in a shard's log."""

    shard: int
    added_id: int


class PlaceRange(msgspec.Struct, frozen=True):
    """The places ``first`` to ``last``, both included, of a shard's log."""

    shard: int
    first: int
    last: int


class MissingPlace(msgspec.Struct, frozen=True):
    """A shard in which an outlet has not passed the places of a wait. ``position``: the added_id
    that it takes next, null where it has not begun. ``waits_for``: the added_id that it has to
    pass."""

    shard: int
    position: int | None
    waits_for: int


class Passed(msgspec.Struct, frozen=True):
    """The outlet has passed every place of the token.

    ``parked``: cells that it could not handle and has set aside. ``skipped``: places that it never
    handles, because its start lies behind them, an operator moved it past them, or gave the parked
    cell up. It has handled all others, or they are none of its cells.
    """

    outlet: str
    parked: list[Place] = []
    skipped: list[PlaceRange] = []

    @property
    def handled(self) -> bool:
        """Whether nothing is parked or skipped."""
        return not self.parked and not self.skipped


class Outlet(Protocol):
    """The outlet of a wait. Any number of threads."""

    @property
    def title(self) -> str:
        """For example ``trigger 'billing'``."""
        ...

    def positions(self) -> Mapping[int, int]:
        """By shard the added_id that it takes next; shards that it has not begun are left out. They
        may be behind. Raises Unavailable."""
        ...

    def passed(self, places: Sequence[Places]) -> Passed | None:
        """The outcome of the cells at these places; None unless all of them are passed at one
        moment. Raises Unavailable."""
        ...


Find = Callable[[Kind, str], Outlet]
"""An outlet by its name. Raises NotFound, with the names that there are."""


class Waits:
    """The waits in this process. Any number of threads. ``find`` is given by the program that
    opened the datastore, if it has the coordination."""

    def __init__(self, history: Callable[[], str], shards: Callable[[], int]) -> None:
        self._history = history
        self._shards = shards
        self._lock = threading.Lock()
        self.waiters = 0
        """How many wait now."""
        self._watched: dict[str, _Watched] = {}
        self.find: Find | None = None

    def outlet(self, token: Token, kind: Kind, name: str) -> Outlet:
        """The outlet, when the token is one of this store. Raises InvalidRequest, NotFound,
        OtherHistory, Unavailable."""
        token.check(self._history(), self._shards())
        if self.find is None:
            raise InvalidRequest(
                "wait_for: this datastore was opened without the coordination that knows how far"
                " its outlets are"
            )
        return self.find(kind, name)

    @contextmanager
    def at(self, outlet: Outlet, token: Token) -> Iterator[Wait]:
        """One wait. Blocks for nothing. Raises Overloaded."""
        with self._lock:
            if self.waiters >= WAITERS_MAX:
                raise Overloaded(
                    f"{WAITERS_MAX} callers wait here, which is the most allowed; try again shortly"
                )
            self.waiters += 1
            watched = self._watched.setdefault(outlet.title, _Watched(outlet))
            watched.waiters += 1
        try:
            yield Wait(watched, token.places)
        finally:
            with self._lock:
                self.waiters -= 1
                watched.waiters -= 1
                if not watched.waiters:
                    del self._watched[outlet.title]


class _Watched:
    """An outlet that somebody waits for."""

    def __init__(self, outlet: Outlet) -> None:
        self.outlet = outlet
        self.waiters = 0
        self.because = ""
        """Why its positions could not be read at the last look."""
        self._looking = threading.Lock()
        self._read_at_s = -math.inf
        self._positions: Mapping[int, int] = {}

    def positions(self) -> Mapping[int, int]:
        """As read a moment ago, or now; never waits for a thread that reads them."""
        if time.monotonic() - self._read_at_s >= PAUSE_FIRST_S and self._looking.acquire(
            blocking=False
        ):
            try:
                self._positions = self.outlet.positions()
                self.because = ""
            except Unavailable as error:
                self.because = str(error)
            finally:
                self._read_at_s = time.monotonic()
                self._looking.release()
        return self._positions


class Wait:
    """One wait, by one caller."""

    def __init__(self, watched: _Watched, places: Sequence[Places]) -> None:
        self._watched = watched
        self._places = places
        self.missing: list[MissingPlace] = []
        """The shards that were not passed at the last look."""

    @property
    def outlet(self) -> str:
        return self._watched.outlet.title

    @property
    def because(self) -> str:
        """Why the last look failed; empty where it did not."""
        return self._watched.because

    def look(self) -> Passed | None:
        """The answer, or None: not yet."""
        self.missing = missing_places(self._watched.positions(), self._places)
        if self.missing:
            return None
        try:
            return self._watched.outlet.passed(self._places)
        except Unavailable as error:
            self._watched.because = str(error)
            return None


def missing_places(positions: Mapping[int, int], places: Collection[Places]) -> list[MissingPlace]:
    """The shards in which a position is not above all places."""
    return [
        MissingPlace(each.shard, positions.get(each.shard), each.last)
        for each in places
        if positions.get(each.shard, 0) <= each.last
    ]


def pauses(timeout_s: float) -> Iterator[float]:
    """Seconds between two looks; after the last one there is one more look."""
    deadline_s, pause_s = time.monotonic() + timeout_s, PAUSE_FIRST_S
    while (left_s := deadline_s - time.monotonic()) > 0:
        yield min(pause_s, left_s)
        pause_s = min(PAUSE_MAX_S, pause_s * 1.5)


def time_over(
    outlet: str, missing: Sequence[MissingPlace], because: str, timeout_s: float
) -> WaitTimedOut:
    """The error of a wait without an answer."""
    shown = [
        f"shard {each.shard} is"
        f" {'not begun' if each.position is None else f'at {each.position}'}"
        f" and has to pass {each.waits_for}"
        for each in missing[:_MISSING_SHOWN]
    ]
    more = len(missing) - len(shown)
    reasons = [*shown, *([f"{more} more shards"] if more else []), *([because] if because else [])]
    error = WaitTimedOut(
        f"{outlet} has not passed the token's places within {timeout_s:g} s:"
        f" {'; '.join(reasons) or 'it was moved while this was looked at'}"
    )
    error.missing = tuple((each.shard, each.position, each.waits_for) for each in missing)
    return error


def one_outlet(names: Mapping[str, Any]) -> tuple[Kind, str]:
    """The one outlet that is named by its kind. Raises InvalidRequest."""
    given = [(kind, names[kind]) for kind in KINDS if names.get(kind) is not None]
    if len(given) != 1:
        raise InvalidRequest(
            f"wait_for takes one of {'=, '.join(KINDS)}=; {len(given)} are given: wait for one"
            " outlet after the other"
        )
    [(kind, name)] = given
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"{kind}={ascii(name)[:80]} is no name of an outlet")
    return kind, name


def check_timeout_s(timeout_s: object) -> float:
    """Raises InvalidRequest."""
    if type(timeout_s) not in (int, float) or not 0 <= timeout_s <= WAIT_S_MAX:  # type: ignore[operator]
        raise InvalidRequest(
            f"timeout_s {ascii(timeout_s)[:80]} is no number of seconds from 0 to {WAIT_S_MAX:g}"
        )
    return float(timeout_s)  # type: ignore[arg-type]
