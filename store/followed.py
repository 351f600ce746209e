"""Following the logs of a store: the cells as they come, and tokens to resume behind them.

A follower reads each of its shards in order. It passes a place once it has given the cell there, or
has found a cell of a column that nobody asked it for. Its token names the places that it has
passed (:mod:`cellfeed.store.cells.token`). So a follower that begins with a token gives every cell
behind it, once. An order of cells of different shards is not promised.

The same in process (:mod:`cellfeed.store.following.in_process`) and over HTTP
(:mod:`cellfeed.store.http.calls.follows`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol, Self

from cellfeed.store.cells.cell import Cell, check_column_name
from cellfeed.store.cells.token import Token
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.limits import SHARDS_STORED_MAX

LATEST: Final = "latest"
EARLIEST: Final = "earliest"

COLUMNS_MAX: Final = 1_000
"""Columns that one follower asks for by name: as many as a request may carry without being long. A
follower that wants more leaves them out, and gets all."""

BOOKMARK_S: Final = 2.0
"""Seconds between two bookmarks of a follower: the places that it has passed without a cell to
give. Over HTTP they are its heartbeat, too."""

SILENT_S: Final = 3.5 * BOOKMARK_S
"""A worker that has sent nothing for so many seconds is given up, and another one asked: three of
its bookmarks are missing."""

_TRAIL_STEPS_MIN: Final = 256


class Here(NamedTuple):
    """A place of a trail."""

    history: str
    base: Mapping[int, int]
    steps: list[tuple[int, int]]
    moves: int
    """Of the steps: those before this place."""

    def token(self) -> Token:
        """The token of the places passed until here."""
        return Token.passed(self.history, {**self.base, **dict(self.steps[: self.moves])})


class Trail:
    """The next added_id of each shard, and where a follower was before, at little cost for each
    cell: a token is made only when somebody asks."""

    def __init__(self, history: str, positions: Mapping[int, int]) -> None:
        self.history = history
        self.positions = dict(positions)
        # One name for both, so that another thread never sees the one without the other.
        self._since: tuple[Mapping[int, int], list[tuple[int, int]]] = dict(positions), []

    def move(self, shard: int, position: int) -> None:
        """The next added_id of a shard is ``position`` from now on."""
        base, steps = self._since
        if len(steps) >= max(_TRAIL_STEPS_MIN, len(base)):
            self._since = dict(self.positions), (steps := [])
        self.positions[shard] = position
        steps.append((shard, position))

    def here(self) -> Here:
        base, steps = self._since
        return Here(self.history, base, steps, len(steps))


@dataclass(frozen=True)
class FollowedCell(Cell):
    """A cell that a follower gives. A cell whose body was erased comes with ``erased`` set."""

    here: Here = field(kw_only=True, repr=False, compare=False)

    @property
    def token(self) -> str:
        """The text to resume behind this cell: ``follow(start=cell.token)``. It stands for all
        cells that the follower has given so far, so keep it once you are done with them."""
        return str(self.here.token())

    @classmethod
    def of(cls, cell: Cell, here: Here) -> Self:
        """The cell, given at that place of a trail."""
        return cls(
            cell.row_key,
            cell.column_name,
            cell.ref_key,
            cell.body_json,
            cell.shard,
            cell.added_id,
            cell.created_at,
            here=here,
        )


class Follower(Protocol):
    """An iterator of the cells behind a start, which waits for new ones and never ends by itself.
    One thread iterates; any thread may call the rest.

    After an error of Unavailable the next call of ``next`` tries again, from the same place.
    """

    @property
    def token(self) -> str:
        """The text to resume behind the last cell given. It also covers places passed since,
        without a cell of a column asked for."""
        ...

    def __iter__(self) -> Iterator[FollowedCell]: ...

    def __next__(self) -> FollowedCell: ...

    def close(self) -> None:
        """Ends the iteration, also one that waits."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_exc: object) -> None: ...


@dataclass(frozen=True)
class Wanted:
    """The cells to follow: those of ``columns`` (None: of all) in ``shards`` (None: all), from
    ``start`` on."""

    columns: frozenset[str] | None
    shards: tuple[int, ...] | None
    start: str | datetime | Token


def checked_wanted(column: object, shards: object, start: object) -> Wanted:
    """The checked arguments of ``follow``. Raises InvalidRequest."""
    return Wanted(_columns(column), _shards(shards), _start(start))


def _columns(column: Any) -> frozenset[str] | None:
    if column is None:
        return None
    if isinstance(column, str):
        return frozenset((check_column_name(column),))
    if not isinstance(column, Collection) or not 0 < len(column) <= COLUMNS_MAX:
        raise InvalidRequest(
            f"column {ascii(column)[:80]} is no column name, and no list of 1 to {COLUMNS_MAX}"
        )
    return frozenset(map(check_column_name, column))


def _shards(shards: Any) -> tuple[int, ...] | None:
    if shards is None:
        return None
    if (
        not isinstance(shards, Collection)
        or not shards
        or not all(type(each) is int and 0 <= each < SHARDS_STORED_MAX for each in shards)
    ):
        raise InvalidRequest(
            f"shards {ascii(shards)[:80]} is no list of shard numbers; leave it out for all shards"
        )
    return tuple(sorted(set(shards)))


def _start(start: Any) -> str | datetime | Token:
    if isinstance(start, str) and start in (LATEST, EARLIEST):
        return start
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise InvalidRequest(f"start {start} has no time zone")
        return start
    if isinstance(start, str) and ":" not in start:
        raise InvalidRequest(
            f"start {ascii(start)[:80]} is none of {LATEST!r}, {EARLIEST!r}, a token, or a"
            " datetime with a time zone"
        )
    return Token.of(start)
