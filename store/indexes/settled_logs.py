"""Which logs an index has passed to their ends. The entries of rows in these logs equal the cells,
so a fresh query does not look at these rows' cells.

A row of an answer is **settled** where all of this is true of its shard's log:

    1. the index's group was known to be past the location P, before the entries were read. No cell
       below P was parked, given up or left out
    2. the log ended at P or below it, by a look within the query, on the same server as the entries
    3. leader epoch and start of the log were the same in that look as when P was read. When P was
       read, no trim of the log had entries left to remove

**Why such an entry is fresh.** The group saves a location after the entries and tombstones of all
cells below it were written. They stay: merging keeps the higher ref keys, and only trims, erasures
and repairs remove entries. So at the time of the select the entries followed from all cells below
P (1). By 2 the log had no other cells when the query began or later. A trim since then raised the
start of the log, and an earlier one had no entries left (3). An erasure is a cell of the log, and
the group passes it after the row's entries are gone. A restored log has another epoch (3).

**Where that is not so**, rows are looked at as before: any doubt costs time, never an answer. A
thread of its own reads the offsets, for at most a twentieth of the time. So a query waits neither
for the coordination nor for a long list.

Logs, entries and state lie on one server. With several, P may come from a new master, and the
entries from an old one that does not know it yet. So clusters look at every row.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from cellfeed.store.cells.sharding import shards_of
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.index_values import Entry
from cellfeed.store.engines.contract.log_ends import LogEnd, LogEnds
from cellfeed.store.errors import CellfeedError
from cellfeed.store.indexes.trim_notes import noted_shards

HandledTo = Callable[[str], Mapping[int, int]]
"""Of a trigger group by shard: the location that it is past, with nothing below left undone; other
shards are left out."""

_SHARE: Final = 20
"""A look at offsets takes at most one part in so many of the time."""

_PAUSE_S: Final = 0.01
"""Shortest time between two looks, in seconds."""


class Known:
    """A group's offsets, read at one moment: of each shard the end of its log when the group was
    past it."""

    def __init__(self, ends: Mapping[int, LogEnd]) -> None:
        self._ends = ends
        self._compared: tuple[LogEnds, frozenset[int]] = LogEnds(""), frozenset()
        """The ends that were compared last, and the shards that were behind."""

    def behind(self, ends: Mapping[int, LogEnd]) -> frozenset[int]:
        """The shards whose logs have more, or other, cells than those known to be handled."""
        return frozenset(
            shard for shard, end in ends.items() if not _covers(self._ends.get(shard), end)
        )

    def behind_all(self, ends: LogEnds) -> frozenset[int]:
        """As :meth:`behind`. Where nothing is written, the text is the same for every query."""
        compared, found = self._compared
        if compared != ends:
            found = self.behind(ends.by_shard())
            self._compared = ends, found
        return found


def _covers(known: LogEnd | None, end: LogEnd) -> bool:
    return known is not None and known[:2] == end[:2] and end.next_added_id <= known.next_added_id


class SettledRows:
    """Of entries that were read after ``known``. ``ends``: of all logs, from before them; None: the
    logs of an answer's rows are looked at, after them."""

    def __init__(self, engine: Engine, known: Known, ends: LogEnds | None) -> None:
        self._engine = engine
        self._known = known
        self._behind = None if ends is None else known.behind_all(ends)

    def others(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """The entries that are not settled. Raises StorageUnavailable."""
        if self._behind is not None and not self._behind:
            return ()
        shards = shards_of([entry.row_key for entry in entries], self._engine.shards)
        behind = self._behind
        if behind is None:
            heads = self._engine.heads(sorted(set(shards)))
            behind = self._known.behind(
                {
                    shard: LogEnd(head.leader_epoch, head.log_start, head.next_added_id)
                    for shard, head in heads.items()
                }
            )
        return [entry for entry, shard in zip(entries, shards, strict=True) if shard in behind]


class SettledLogs:
    """Of the indexes of a datastore. Any number of threads. ``handled_to`` is None in a process
    that knows no coordination: it looks at every row."""

    def __init__(self, engine: Engine, handled_to: HandledTo | None = None) -> None:
        self._engine = engine
        self.handled_to = handled_to
        self._known: dict[str, Known] = {}
        self._lock = threading.Lock()
        self._reads = False
        self._next_s = 0.0

    def known(self, group: str) -> Known | None:
        """A group's offsets as known now; to be taken before its entries are read."""
        return self._known.get(group)

    def read_soon(self, group: str) -> None:
        """Has a thread read a group's offsets where that is due; returns at once."""
        if (
            self.handled_to is None
            or self._engine.indexes.beside_ends is None
            or time.monotonic() < self._next_s
        ):
            return
        with self._lock:
            if self._reads:
                return
            self._reads = True
        threading.Thread(
            target=self._read_in_turn, args=(group,), name="settled-logs", daemon=True
        ).start()

    def _read_in_turn(self, group: str) -> None:
        began_s = time.monotonic()
        try:
            with suppress(CellfeedError):
                self.read(group)
        finally:
            now_s = time.monotonic()
            self._next_s = now_s + max(_PAUSE_S, _SHARE * (now_s - began_s))
            self._reads = False

    def read(self, group: str) -> None:
        """Reads it now. Raises Unavailable."""
        if self.handled_to is None:
            return
        before = self._engine.heads()
        handled = self.handled_to(group)
        trimmed = noted_shards(self._engine.state)  # after the starts: a note comes before its trim
        after = self._engine.heads()
        self._known[group] = Known(
            {
                shard: LogEnd(head.leader_epoch, head.log_start, handled[shard])
                for shard, head in before.items()
                if shard in handled
                and shard not in trimmed
                # Another history of the log has another epoch; its offsets may lie beyond the end.
                and shard in after
                and after[shard].leader_epoch == head.leader_epoch
                and handled[shard] <= after[shard].next_added_id
            }
        )
