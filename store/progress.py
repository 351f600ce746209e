"""Whether the parts of this process advance: the answer to ``/readyz`` and to systemd.

A part has a :class:`Watch`. A loop calls :meth:`Watch.moved` at each turn that did its work; a part
that only sometimes has work calls :meth:`Watch.waits` when work arrives, and :meth:`Watch.idle`
when none is left. The watch stands when neither came for longer than the limit of its kind. So a
thread that hangs is found by somebody else, from the outside, and needs no cooperation.

The loops that died are found by :mod:`cellfeed.store.background`; :func:`unready` joins both.

A watch is forgotten with its owner, and by :meth:`Watch.close`. After a ``fork()`` the child has
none.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from cellfeed.store import background

Kind = Literal["event-loop", "loop", "writer", "storage", "coordination", "source", "follower"]
"""Of a watch: its limit goes by it."""

Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class ProgressLimits(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """After how many seconds without progress a part of a process counts as standing, and the
    process is not ready. ``event_loop_s``: the loop that serves connections; a process whose event
    loop stands is not alive either. ``loop_s``: a loop that looks at the logs, the rights or the
    nodes. ``writer_s``: puts that wait while no group of puts ends. ``storage_s``: the storage
    does not answer. ``coordination_s``: ZooKeeper, or the state table in its place, does not
    answer. ``source_s``: the Kafka cluster or the gateway that a warehouse loads from does not
    answer. ``follower_s``: a trigger, an index or an export is behind its log, and none of its
    waiting shards moves."""

    event_loop_s: Seconds = 10.0
    loop_s: Seconds = 30.0
    writer_s: Seconds = 30.0
    storage_s: Seconds = 10.0
    coordination_s: Seconds = 20.0
    source_s: Seconds = 20.0
    follower_s: Seconds = 60.0

    def of(self, kind: Kind) -> float:
        """The limit of a kind, in seconds."""
        return {
            "event-loop": self.event_loop_s,
            "loop": self.loop_s,
            "writer": self.writer_s,
            "storage": self.storage_s,
            "coordination": self.coordination_s,
            "source": self.source_s,
            "follower": self.follower_s,
        }[kind]


class Reason(msgspec.Struct, frozen=True):
    """Why a process is not ready. ``code``: ``starting``, ``stopping``, ``loop-dead``,
    ``event-loop-stands``, ``loop-stands``, ``writer-stands``, ``storage-away``,
    ``coordination-away``, ``source-away``, ``follower-stands`` or ``work-stopped``. ``part``: the
    loop, group or server. ``for_s``: how long already, in seconds, where that is known."""

    code: str
    part: str
    message: str
    for_s: float | None = None

    def __str__(self) -> str:
        return self.message


class Watch:
    """The progress of one part. Any thread may call it; the calls of one watch come from one thread
    at a time. ``clock_s``: seconds that never go back."""

    def __init__(
        self,
        part: str,
        kind: Kind,
        *,
        is_idle: bool = False,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.part, self.kind = part, kind
        self._clock_s = clock_s
        self._since_s: float | None = None if is_idle else clock_s()
        self._because = ""
        _registry.watches.add(self)

    def moved(self) -> None:
        """The part did its work just now, and is due to do more."""
        self._since_s, self._because = self._clock_s(), ""

    def waits(self, because: str = "") -> None:
        """There is work that is not done. ``because``: why, where that is known."""
        if self._since_s is None:
            self._since_s = self._clock_s()
        self._because = because or self._because

    def idle(self) -> None:
        """There is nothing to do."""
        self._since_s, self._because = None, ""

    def done(self, *, more: bool) -> None:
        """A piece of work is done. ``more``: whether other work waits."""
        if more:
            self.moved()
        else:
            self.idle()

    def close(self) -> None:
        """The part has ended as it should."""
        _registry.watches.discard(self)

    def standing(self) -> Reason | None:
        """Why the part stands; None while it advances or has nothing to do."""
        if (since_s := self._since_s) is None:
            return None
        for_s, limit_s = self._clock_s() - since_s, _registry.limits.of(self.kind)
        if for_s <= limit_s:
            return None
        what = _WHAT[self.kind].format(part=self.part)
        because = f": {self._because}" if self._because else ""
        message = f"{what} for {for_s:.0f} s (limit {limit_s:g} s){because}"
        return Reason(_CODES[self.kind], self.part, message, round(for_s, 1))


_CODES: Final[dict[Kind, str]] = {
    "event-loop": "event-loop-stands",
    "loop": "loop-stands",
    "writer": "writer-stands",
    "storage": "storage-away",
    "coordination": "coordination-away",
    "source": "source-away",
    "follower": "follower-stands",
}
_WHAT: Final[dict[Kind, str]] = {
    "event-loop": "the event loop {part} has not turned",
    "loop": "the loop {part} has done nothing",
    "writer": "puts wait for {part}, and no group of them has ended",
    "storage": "{part} has not answered",
    "coordination": "{part} has not answered",
    "source": "{part} has not answered",
    "follower": "{part} is behind its log and has not moved",
}


class _Registry:
    def __init__(self) -> None:
        self.watches: weakref.WeakSet[Watch] = weakref.WeakSet()
        self.limits = ProgressLimits()


_registry = _Registry()


def _in_child() -> None:
    _registry.watches = weakref.WeakSet()


os.register_at_fork(after_in_child=_in_child)


def set_limits(limits: ProgressLimits) -> None:
    """Puts other limits in force, for all watches of this process."""
    _registry.limits = limits


def unready() -> list[Reason]:
    """Why this process is not ready, as far as its own parts know: dead loops, and parts that
    stand. Asks nobody else, so it always returns at once."""
    dead = [
        Reason("loop-dead", each.loop, str(each))
        for each in background.all_troubles()
        if each.is_dead or each.deaths >= background.DEATHS_REPORTED
    ]
    return dead + _standing()


def unalive() -> list[Reason]:
    """Why only a restart helps: a loop is dead for good, or an event loop stands. No other server
    can bring that about."""
    dead = [
        Reason("loop-dead", each.loop, str(each))
        for each in background.all_troubles()
        if each.is_dead
    ]
    return dead + [each for each in _standing() if each.code == _CODES["event-loop"]]


def _standing() -> list[Reason]:
    found = [each.standing() for each in list(_registry.watches)]
    return sorted((each for each in found if each is not None), key=lambda each: each.message)
