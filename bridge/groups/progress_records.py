"""What each worker reports of its shards, for other processes to read: how far each has come, when
it last got on, and why it is where it is.

A hint for people, never the truth about offsets: lag is worked out from offsets and heads
(``lag.py``). One entry of the state table per group and worker,

    triggers/<group>/about              {column, function, since_us}: what the trigger is, written
                                        when it is first run
    triggers/<group>/workers/<member>   a :class:`WorkerRecord`: written when something changed, at
                                        most about once a second; removed when the worker leaves
    triggers/<group>/left               who left last, and when: since when nobody has the shards of
                                        a group without workers

A worker that died leaves its entry; a reader sees by the group's members that it is gone. It is
removed by the group's leader a day later.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import msgspec

from cellfeed.bridge.groups.control import group_prefix, when
from cellfeed.store.engines.contract.engine import StateTable
from cellfeed.store.engines.contract.values import StateEntry

TELL_EVERY_S: Final = 1.0
"""Shortest time between two records of a worker with few shards."""

TELL_BYTES_PER_S: Final = 64 << 10
"""A longer record waits longer: 4,096 shards of one worker are some 50 kB, so it tells once a
second."""

TELL_AGAIN_S: Final = 15.0
"""A worker with nothing new says so: while coordination is away, nobody else can tell that it
lives."""

FORGOTTEN_AFTER_S: Final = 86_400.0
"""How long the record of a worker that died is kept."""

_FORGET_EVERY_S: Final = 3_600.0
_REASON_CHARACTERS_MAX: Final = 300
"""Of a reason in a record: there may be one for each shard."""


NOT_STARTED: Final = "not started"
"""The reason of a shard that has had nothing to do yet, or no thread."""


@dataclass
class Progress:
    """What the work on one shard reports of itself. ``location``: the next cell; ``run`` and
    ``parked``: cells, by this worker."""

    location: int = 0
    run: int = 0
    parked: int = 0
    last_progress_s: float = 0.0
    because: str = NOT_STARTED
    running: int | None = None
    """The cell, or the first of the batch, that the function is called for at this moment."""


class ShardRecord(msgspec.Struct, frozen=True, array_like=True):
    """One shard in a record. ``progress_s``: when it last got on, seconds since 1970 UTC (0: not
    yet). ``reason`` is an index."""

    location: int
    progress_s: int
    reason: int


class WorkerRecord(msgspec.Struct, frozen=True, array_like=True):
    """``stands_still``: why all of the group's work waits here. ``reasons``: each once; index -1 of
    a place is "came to" the id before its location."""

    at_us: int
    stands_still: str
    reasons: list[str]
    shards: dict[int, ShardRecord]

    def reason(self, shard: int) -> str:
        place = self.shards[shard]
        return self.reasons[place.reason] if place.reason >= 0 else f"came to {place.location - 1}"


class About(msgspec.Struct, frozen=True):
    """What a trigger is, as its workers last said."""

    column: str
    function: str
    since_us: int


class Left(msgspec.Struct, frozen=True):
    member: str
    at_us: int


class ProgressTeller:
    """One worker's record in one group. Used by one thread."""

    def __init__(
        self, state: StateTable, group: str, member: str, column: str, function: str
    ) -> None:
        self._state = state
        self._about = column, function
        self._introduced = False
        self._prefix = group_prefix(group)
        self._member = member
        self._key = f"{self._prefix}workers/{quote(member, safe='')}"
        self._last_record: tuple[str, list[str], dict[int, ShardRecord]] | None = None
        self._due_s = 0.0
        self._again_s = 0.0
        self._forget_at_s = 0.0
        self._running: dict[int, tuple[int, str]] = {}
        """The cell that each shard was in when it was last looked at, and since when it has been
        seen there."""

    def is_due(self) -> bool:
        return time.monotonic() >= self._due_s

    def tell(self, stands_still: str | None, shards: Mapping[int, Progress]) -> None:
        """Writes the record if something changed or it is old. Raises Unavailable."""
        now_s = time.monotonic()
        self._due_s = now_s + TELL_EVERY_S
        if not self._introduced:
            self._introduce()
        numbers: dict[str, int] = {}
        places: dict[int, ShardRecord] = {}
        still = self._still_running(shards)
        for shard, each in shards.items():
            reason = -1
            came_to = each.because == f"came to {each.location - 1}"
            if shard in still:
                because = still[shard] if came_to else f"{each.because}; {still[shard]}"
                reason = numbers.setdefault(because[:_REASON_CHARACTERS_MAX], len(numbers))
            elif not came_to:
                reason = numbers.setdefault(each.because[:_REASON_CHARACTERS_MAX], len(numbers))
            places[shard] = ShardRecord(each.location, int(each.last_progress_s), reason)
        record = ((stands_still or "")[:_REASON_CHARACTERS_MAX], list(numbers), places)
        if record == self._last_record and now_s < self._again_s:
            return
        value = msgspec.msgpack.encode(WorkerRecord(self._state.now_us(), *record))
        self._state.commit({self._key: value})
        self._last_record = record
        self._due_s = now_s + max(TELL_EVERY_S, len(value) / TELL_BYTES_PER_S)
        self._again_s = now_s + TELL_AGAIN_S

    def _still_running(self, shards: Mapping[int, Progress]) -> dict[int, str]:
        """Of shards that are in the same cell as at the look before: in which, and since when."""
        before, self._running = self._running, {}
        still: dict[int, str] = {}
        now = when(time.time_ns() // 1000)
        for shard, each in shards.items():
            if (cell := each.running) is None:
                continue
            seen = before.get(shard)
            if seen is not None and seen[0] == cell:
                still[shard] = f"cell {cell} has been running since {seen[1]}"
            self._running[shard] = (
                (cell, seen[1]) if seen is not None and seen[0] == cell else (cell, now)
            )
        return still

    def leave(self) -> None:
        """Takes the record away. Raises Unavailable."""
        self._state.commit(
            {
                self._key: None,
                f"{self._prefix}left": msgspec.json.encode(
                    Left(self._member, self._state.now_us())
                ),
            }
        )

    def forget_the_long_dead(self, members: list[str]) -> None:
        """Removes old records of workers that are no members any more; does nothing when called
        more often than it needs to be."""
        if time.monotonic() < self._forget_at_s:
            return
        self._forget_at_s = time.monotonic() + _FORGET_EVERY_S
        long_ago_us = self._state.now_us() - int(FORGOTTEN_AFTER_S * 1e6)
        keys = {f"{self._prefix}workers/{quote(member, safe='')}" for member in members}
        for found in self._state.list(f"{self._prefix}workers/"):
            if found.key not in keys and worker_record(found).at_us < long_ago_us:
                self._state.commit({found.key: None}, expect={found.key: found.version})

    def _introduce(self) -> None:
        """Says what the trigger is, unless that is known."""
        key = f"{self._prefix}about"
        found = self._state.get(key)
        known = msgspec.json.decode(found.value, type=About) if found else None
        if known is None or (known.column, known.function) != self._about:
            self._state.commit(
                {key: msgspec.json.encode(About(*self._about, self._state.now_us()))}
            )
        self._introduced = True


def worker_record(entry: StateEntry) -> WorkerRecord:
    return msgspec.msgpack.decode(entry.value, type=WorkerRecord)
