"""Each worker's reports on its shards, for other processes to read: how far each has come, when it
last got on, and why it is where it is.

A hint for people, never the truth about offsets: lag is worked out from offsets and heads
(``lag.py``). Entries of the state table,

    triggers/<group>/about              {column, function, since_us}: the trigger itself, written
                                        when it is first run
    triggers/<group>/workers/<member>   a :class:`WorkerRecord` of its shards below
                                        ``RECORD_SHARDS``: written when something changed, at most
                                        about once a second; removed when the worker leaves
    triggers/<group>/workers/<member>/<n>   the same of the shards from ``n * RECORD_SHARDS`` on,
                                            with nothing about the worker as a whole
    triggers/<group>/left               the last worker to leave, and when: since when nobody has
                                        the shards of a group without workers

Each entry is written by itself: a worker that dies between two leaves some older than others, all
true of their moment.

A worker that died leaves its entries; a reader sees by the group's members that it is gone. They
are removed by the group's leader a day later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import msgspec

from cellfeed.store.engines.contract.values import StateEntry

RECORD_SHARDS: Final = 4_096
"""Shards of one entry: some 50 kB, and with ``REASONS_MAX`` reasons far below 1 MiB."""


REPORT_AGAIN_S: Final = 15.0
"""A worker with nothing new says so: while coordination is away, nothing else shows that it
lives."""


NOT_STARTED: Final = "not started"
"""The reason of a shard that has had nothing to do yet, or no thread."""


@dataclass
class Progress:
    """The progress of the work on one shard. ``location``: the next cell; ``run`` and ``parked``:
    cells, by this worker."""

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
    a place is "came to" the id before its location. ``takes_nothing``: why this worker cannot take
    shards, or give some back; the ones that it has are worked on."""

    at_us: int
    stands_still: str
    reasons: list[str]
    shards: dict[int, ShardRecord]
    takes_nothing: str = ""

    def joined(self, other: WorkerRecord) -> WorkerRecord:
        """Of the shards of both."""
        first = len(self.reasons)
        shards = {
            shard: ShardRecord(place.location, place.progress_s, place.reason + first)
            if place.reason >= 0
            else place
            for shard, place in other.shards.items()
        }
        return WorkerRecord(
            max(self.at_us, other.at_us),
            self.stands_still or other.stands_still,
            [*self.reasons, *other.reasons],
            {**self.shards, **shards},
            self.takes_nothing or other.takes_nothing,
        )

    def reason(self, shard: int) -> str:
        place = self.shards[shard]
        return self.reasons[place.reason] if place.reason >= 0 else f"came to {place.location - 1}"


class About(msgspec.Struct, frozen=True):
    """A trigger's description, as its workers last wrote it."""

    column: str
    function: str
    since_us: int


class Left(msgspec.Struct, frozen=True):
    member: str
    at_us: int


def worker_record(entry: StateEntry) -> WorkerRecord:
    return msgspec.msgpack.decode(entry.value, type=WorkerRecord)


def worker_records(entries: Mapping[str, StateEntry]) -> dict[str, WorkerRecord]:
    """By member, of a group's entries by their keys behind :func:`group_prefix`."""
    found: dict[str, WorkerRecord] = {}
    for key, entry in sorted(entries.items()):
        if key.startswith("workers/"):
            member, record = member_of(key), worker_record(entry)
            found[member] = found[member].joined(record) if member in found else record
    return found


def member_of(key: str) -> str:
    """The member whose record has this key, behind :func:`group_prefix`."""
    return unquote(key.split("/")[1])
