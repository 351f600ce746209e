"""Checks the whole storage for damage, unasked: every file or node, piece by piece, no faster than
declared, one pass every so often.

A read by key notices most damage that it meets, not all: where a page of an index leads a search
astray, the cell that it was for is "not there". Nobody asks for every cell every day. So a pass
does, and searches each cell by its key as well.

Every worker has one. The entry ``checks/pass`` of the state table has the pass under way, its
place, and its findings. It is written every ``SIGN_EVERY_S``. A worker whose write is refused was
overtaken, and leaves the pass to the other. One that finds the entry without a sign for
``AGAIN_AFTER_S`` continues where it stands: a restart costs the pieces of some seconds. Two at the
same time read more than they need, and harm nothing.

A finding is logged at once, and stays in the entry until a later pass has ended: the entry has the
last pass beside the one under way. A place that does not answer is counted apart, and is looked at
again by the next pass.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Final

import msgspec

from cellfeed.store.engines.contract.findings import Findings, Kind
from cellfeed.store.engines.contract.piecewise import InPieces, Piece
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.contract.values import StateEntry
from cellfeed.store.errors import CellfeedError, DataDamaged, ProtectData
from cellfeed.store.failpoints import declare, failpoint

declare("checks.after_sign")

KEY: Final = "checks/pass"

LOOK_EVERY_S: Final = 60.0
"""How often a worker looks whether a pass is due or was left, in seconds; so a process of some
seconds does nothing."""

SIGN_EVERY_S: Final = 10.0
"""How often a pass notes how far it is, in seconds."""

AGAIN_AFTER_S: Final = 60.0
"""After how long without a sign another worker continues a pass, in seconds: its worker has died,
or waits for a storage that does not answer."""

PIECE_CELLS: Final = 500
"""Cells in one piece, at most: some milliseconds of the interpreter."""

NAMED_MAX: Final = 20
"""Findings of a pass that the entry names; the others are counted, and logged."""

_log: Final = logging.getLogger("cellfeed.checks")

Places = Callable[[Findings], AbstractContextManager[Sequence[InPieces]]]
"""Opens the places to check. A place that does not answer is a finding."""


class Pass(msgspec.Struct, frozen=True):
    """``at_us``: its last sign, or its end. ``place``, ``shard``, ``first``: the piece that comes
    next. ``damaged``: how many findings; ``unread``: how many places or shards were not looked at.
    ``named``: the first of both. Moments are the state table's, microseconds since 1970."""

    begun_at_us: int
    at_us: int
    place: str = ""
    shard: int = 0
    first: int = 0
    cells: int = 0
    damaged: int = 0
    unread: int = 0
    named: list[str] = []


class Passes(msgspec.Struct, frozen=True):
    """The entry. ``last``: the last pass that came to its end."""

    under_way: Pass | None = None
    last: Pass | None = None

    @property
    def found(self) -> Pass | None:
        """The pass whose findings count: the one under way as soon as it has any."""
        under_way = self.under_way
        return under_way if under_way is not None and under_way.named else self.last

    def age_s(self, now_us: int) -> float | None:
        """Seconds since the last whole pass began; None where there was none."""
        return None if self.last is None else max(0.0, (now_us - self.last.begun_at_us) / 1e6)


def passes_of(entry: StateEntry | None) -> Passes:
    """The passes that the entry has; nothing where it is not there, or damaged: a pass begins again
    then."""
    with suppress(msgspec.MsgspecError):
        if entry is not None:
            return msgspec.json.decode(entry.value, type=Passes)
    return Passes()


class BackgroundCheck:
    """One worker's, used by one thread. ``every_s``: seconds from the beginning of one pass to that
    of the next one; ``cells_per_s``: no faster than that. ``known``: the entry as it was last seen;
    any thread may read it."""

    def __init__(
        self, state: StateTable, places: Places, every_s: float, cells_per_s: float
    ) -> None:
        self._state, self._places = state, places
        self._every_us, self._cells_per_s = int(every_s * 1e6), cells_per_s
        self._version: int | None = None
        self._signed_at_s = 0.0
        self._error = ""
        self.known = Passes()

    def run(self, stop: threading.Event) -> None:
        """Looks until ``stop`` is set. Errors are logged and waited out."""
        while not stop.wait(LOOK_EVERY_S):
            try:
                self.look(stop)
                self._error = ""
            except CellfeedError as error:
                if str(error) != self._error:
                    self._error = str(error)
                    _log.error("the check for damage waits: %s", error)

    def look(self, stop: threading.Event) -> None:
        """Runs a pass to its end where one is due, or was left. Raises Unavailable where the state
        table does not answer."""
        entry, now_us = self._state.get(KEY), self._state.now_us()
        self.known, self._version = passes_of(entry), entry.version if entry else None
        under_way, last = self.known.under_way, self.known.last
        if under_way is None:
            if last is not None and 0 <= now_us - last.begun_at_us < self._every_us:
                return
            under_way = Pass(now_us, now_us)
        elif 0 <= now_us - under_way.at_us < AGAIN_AFTER_S * 1e6:
            return
        with suppress(_Overtaken):
            self._run(under_way, stop)

    def _run(self, left: Pass, stop: threading.Event) -> None:
        """Runs a pass from where it was left."""
        found, logged = Findings(), 0
        self._sign(left, found)
        failpoint("checks.after_sign")
        with self._places(found) as places:
            size, began_s = max(1, min(PIECE_CELLS, int(self._cells_per_s))), time.monotonic()
            for now, cells in _pieces(places, left, size, found):
                for each in found.found[logged:]:
                    _log.error("%s. `cellfeed check` names all that is damaged", each)
                logged = len(found.found)
                stop.wait(max(0.0, cells / self._cells_per_s - (time.monotonic() - began_s)))
                if stop.is_set():
                    self._write(msgspec.structs.replace(_added(now, found), at_us=0))
                    return
                if time.monotonic() - self._signed_at_s > SIGN_EVERY_S:
                    self._sign(now, found)
                began_s = time.monotonic()
        ended = msgspec.structs.replace(_added(left, found), at_us=self._state.now_us())
        self._write(None, ended)
        _log.log(
            logging.ERROR if ended.damaged else logging.INFO,
            "the check for damage has looked at %d cells: %d findings; %d places not looked at",
            ended.cells,
            ended.damaged,
            ended.unread,
        )

    def _sign(self, now: Pass, found: Findings) -> None:
        self._write(msgspec.structs.replace(_added(now, found), at_us=self._state.now_us()))
        self._signed_at_s = time.monotonic()

    def _write(self, under_way: Pass | None, last: Pass | None = None) -> None:
        passes = Passes(under_way, last or self.known.last)
        self._version = self._state.commit(
            {KEY: msgspec.json.encode(passes)}, expect={KEY: self._version}
        )
        if self._version is None:
            raise _Overtaken
        self.known = passes


class _Overtaken(Exception):
    """Another worker has the pass."""


def _pieces(
    places: Sequence[InPieces], left: Pass, cells: int, found: Findings
) -> Iterator[tuple[Pass, int]]:
    """Looks at one piece after the other. Gives, behind each, where the next one begins, and how
    many cells it had."""
    names = [place.place for place in places]
    for place in places[names.index(left.place) if left.place in names else 0 :]:
        try:
            for shard in place.begin(found):
                if place.place == left.place and shard < left.shard:
                    continue
                is_left = (place.place, shard) == (left.place, left.shard)
                first: int | None = left.first if is_left else 0
                while first is not None:
                    first, cost = _checked(place, shard, first, cells, found)
                    at = (shard + 1, 0) if first is None else (shard, first)
                    now = msgspec.structs.replace(left, place=place.place, shard=at[0], first=at[1])
                    yield now, cost
        except CellfeedError as error:
            found.add(_kind_of(error), place.place, str(error))


def _checked(place: InPieces, shard: int, first: int, cells: int, found: Findings) -> Piece:
    try:
        return place.check(shard, first, cells, found)
    except DataDamaged as error:
        found.add("integrity", place.place, f"shard {shard}: {error}", shard)
        return Piece(None, 1)


def _kind_of(error: CellfeedError) -> Kind:
    if isinstance(error, DataDamaged):
        return "integrity"
    return "identity" if isinstance(error, ProtectData) else "unread"


def _added(before: Pass, found: Findings) -> Pass:
    """The pass with the findings since."""
    unread = sum(each.kind == "unread" for each in found.found)
    return msgspec.structs.replace(
        before,
        cells=before.cells + found.cells,
        damaged=before.damaged + len(found.found) + found.unnamed - unread,
        unread=before.unread + unread,
        named=[*before.named, *map(str, found.found)][:NAMED_MAX],
    )
