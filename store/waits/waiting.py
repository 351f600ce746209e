"""Waiting until an outlet has passed the places of puts.

An outlet follows the logs: a trigger, an index, a consumer group at a gateway, an export, a lake's
table. Its position in a shard is the next added_id that it will take. Ids are in commit order, so
an outlet whose position is above a place has dealt with the cell there. It has handled the cell,
parked it, or was moved past it by hand, and the answer says which.

This module has the values of a wait, :mod:`cellfeed.store.waits.outlet_watch` the wait itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypedDict

import msgspec

from cellfeed.store.cells.token import Places
from cellfeed.store.errors import InvalidRequest, WaitTimedOut

Kind = Literal["trigger", "index", "group", "export", "lake"]

KINDS: Final[tuple[Kind, ...]] = ("trigger", "index", "group", "export", "lake")

TIMEOUT_S: Final = 5.0
"""How long a caller without a time-out of its own waits: longer than a healthy outlet is behind."""

WAIT_S_MAX: Final = 3_600.0
"""The longest wait, in seconds. Callers that wait longer should read the lag instead."""

LONG_POLL_S_MAX: Final = 10.0
"""The longest that a worker holds one request: a client whose worker hangs asks another one soon
after."""

_MISSING_SHOWN: Final = 3


class WaitOptions(TypedDict, total=False):
    """The keywords of ``wait_for``: exactly one outlet by its name, and how long to wait."""

    trigger: str | None
    index: str | None
    group: str | None
    export: str | None
    lake: str | None
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

    def group(self) -> str:
        """The name under which its positions are saved, now. Raises Unavailable, NotFound."""
        ...

    def positions(self, shards: Collection[int]) -> Mapping[int, int]:
        """By shard the added_id that it takes next; shards that it has not begun are left out, and
        there may be more than those asked for. They may be behind. Raises Unavailable, NotFound."""
        ...

    def passed(self, places: Sequence[Places]) -> Passed | None:
        """The outcome of the cells at these places; None unless all of them are passed at one
        moment. Raises Unavailable, NotFound; Trimmed where their fate is not known."""
        ...


Find = Callable[[Kind, str], Outlet]
"""An outlet by its name. Raises NotFound, with the names that there are."""


def missing_places(positions: Mapping[int, int], places: Collection[Places]) -> list[MissingPlace]:
    """The shards in which a position is not above all places."""
    return [
        MissingPlace(each.shard, positions.get(each.shard), each.last)
        for each in places
        if positions.get(each.shard, 0) <= each.last
    ]


def part_of(passed: Passed, places: Collection[Places]) -> Passed:
    """The answer for these places, out of one for these and others."""
    own = {each.shard: each for each in places}
    parked = [
        each
        for each in passed.parked
        if (mine := own.get(each.shard)) is not None and mine.first <= each.added_id <= mine.last
    ]
    skipped = [
        PlaceRange(each.shard, max(each.first, mine.first), min(each.last, mine.last))
        for each in passed.skipped
        if (mine := own.get(each.shard)) is not None
    ]
    return Passed(passed.outlet, parked, [each for each in skipped if each.first <= each.last])


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
