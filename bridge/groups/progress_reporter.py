"""One worker's writing of its reports: which entries, and how often."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

import msgspec

from cellfeed.bridge.groups.control import group_prefix, when
from cellfeed.bridge.groups.progress_records import (
    RECORD_SHARDS,
    REPORT_AGAIN_S,
    About,
    Left,
    Progress,
    ShardRecord,
    WorkerRecord,
    member_of,
    worker_record,
)
from cellfeed.store.engines.contract.state_table import StateTable

REPORT_EVERY_S: Final = 1.0
"""Shortest time between two records of a worker with few shards."""

REASONS_MAX: Final = 500
"""Different reasons in one entry. The log has them all."""

REPORT_TIME_PART: Final = 0.004
"""The part of a worker's time that goes into putting its records together, at most. With 4,096
shards that takes some 7 ms."""

REPORT_BYTES_PER_S: Final = 64 << 10
"""A longer record waits longer: 4,096 shards of one worker are some 50 kB."""

FORGOTTEN_AFTER_S: Final = 86_400.0
"""How long the record of a worker that died is kept."""

_FORGET_EVERY_S: Final = 3_600.0

_ONE_OF_MANY: Final = f"one of more than {REASONS_MAX} different reasons: the worker's log has it"

_REASON_CHARACTERS_MAX: Final = 300
"""Of a reason in a record: there may be one for each shard."""


class _Piece:
    """The shards of one entry, and their reasons with their numbers."""

    def __init__(self) -> None:
        self.reasons: dict[str, int] = {}
        self.places: dict[int, ShardRecord] = {}

    def add(self, shard: int, progress: Progress, because: str | None) -> None:
        """``because``: None when it is the usual reason, how far the shard has come."""
        number = -1
        if because is not None:
            because = because[:_REASON_CHARACTERS_MAX]
            if because not in self.reasons and len(self.reasons) >= REASONS_MAX:
                because = _ONE_OF_MANY
            number = self.reasons.setdefault(because, len(self.reasons))
        self.places[shard] = ShardRecord(progress.location, int(progress.last_progress_s), number)


class ProgressReporter:
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
        self._last: Mapping[int, tuple[object, ...]] = {}
        """The values last written, by the number of the entry."""
        self._due_s = 0.0
        self._again_s = 0.0
        self._forget_at_s = 0.0
        self._running: dict[int, tuple[int, str]] = {}
        """The cell that each shard was in when it was last looked at, and since when it has been
        seen there."""

    def is_due(self) -> bool:
        return time.monotonic() >= self._due_s

    def report(
        self, stands_still: str | None, shards: Mapping[int, Progress], takes_nothing: str = ""
    ) -> None:
        """Writes, in one commit, the records in which something changed, and the first when it is
        old. ``takes_nothing``: as in :class:`WorkerRecord`. Raises Unavailable."""
        now_s = time.monotonic()
        if not self._introduced:
            self._introduce()
        pieces = {0: _Piece()}
        still = self._still_running(shards)
        for shard, each in shards.items():
            because: str | None = each.because
            came_to = because == f"came to {each.location - 1}"
            if shard in still:
                because = still[shard] if came_to else f"{each.because}; {still[shard]}"
            elif came_to:
                because = None
            number = shard // RECORD_SHARDS
            if number not in pieces:
                pieces[number] = _Piece()
            pieces[number].add(shard, each, because)
        whole = [each[:_REASON_CHARACTERS_MAX] for each in (stands_still or "", takes_nothing)]
        records = {
            number: (whole[0], list(piece.reasons), piece.places, whole[1])
            if number == 0
            else ("", list(piece.reasons), piece.places, "")
            for number, piece in pieces.items()
        }
        changed = {number for number in records if records[number] != self._last.get(number)}
        if now_s >= self._again_s:
            changed.add(0)
        write: dict[str, bytes | None] = dict.fromkeys(
            self._key_of(number) for number in self._last.keys() - records.keys()
        )
        now_us = self._state.now_us()
        for number in changed:
            record = WorkerRecord(now_us, *records[number])
            write[self._key_of(number)] = msgspec.msgpack.encode(record)
        if write:
            self._state.commit(write)
            self._last, self._again_s = records, now_s + REPORT_AGAIN_S
        write_bytes = sum(len(value or b"") for value in write.values())
        self._due_s = now_s + max(
            REPORT_EVERY_S,
            write_bytes / REPORT_BYTES_PER_S,
            (time.monotonic() - now_s) / REPORT_TIME_PART,
        )

    def _key_of(self, number: int) -> str:
        return f"{self._key}/{number}" if number else self._key

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
        """Takes the records away. Raises Unavailable."""
        self._state.commit(
            {
                **dict.fromkeys(self._key_of(number) for number in {0, *self._last}),
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
        for found in self._state.list(f"{self._prefix}workers/"):
            if (
                member_of(found.key.removeprefix(self._prefix)) not in members
                and worker_record(found).at_us < long_ago_us
            ):
                self._state.commit({found.key: None}, expect={found.key: found.version})

    def _introduce(self) -> None:
        """Writes the trigger's description, unless it is there. Learns of records that an earlier
        process of this name left, which the first record replaces."""
        self._last = {
            int(entry.key.removeprefix(f"{self._key}/")): ()
            for entry in self._state.list(f"{self._key}/")
        }
        key = f"{self._prefix}about"
        found = self._state.get(key)
        known = msgspec.json.decode(found.value, type=About) if found else None
        if known is None or (known.column, known.function) != self._about:
            self._state.commit(
                {key: msgspec.json.encode(About(*self._about, self._state.now_us()))}
            )
        self._introduced = True
