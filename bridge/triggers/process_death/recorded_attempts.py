"""Tries of a cell that are counted across processes: because the process may not live to count
them.

A cell can end its process: the function calls ``os._exit``, native code crashes, the system kills
it for want of memory; or it hangs, and the process ends itself (``deadlines.py``). Counting in
memory would try such a cell for ever, once per restart. So a try that may be the process's last one
is counted in the state table **before** the function is called. It is struck off when the function
has returned:

- on a shard that its last owner did not give back (it died, or was overtaken): for every cell that
  may have been under way there, one call of the function at a time, also where it takes batches;
- for a cell with tries on record, from any process;
- for a parked cell that is tried again.

That is a commit for each cell, at most ``CHUNK_CELLS`` (and a batch) of them on each shard that
changed hands so: the price of not knowing which cell it was. Otherwise nothing is written and it
costs nothing. So a cell that kills is run once without a record, then on record as often as the
policy for :class:`~cellfeed.bridge.triggers.retry.ProcessEnded` says; then it is parked without
being run. Before a cell that has ended a process on record is run, the offset is saved. So its next
death makes no other cell run again.

Key: ``tries/<group>/<topic>/<shard>/<added_id>``, in the datastore wherever the coordination is.
Crash points:

    before the try is counted   it was not begun
    counted, not begun          it counts although it was none: a kill just then costs the cell a
                                try
    under way                   it counts
    come back, not struck off   it counts; the offset is before the cell as well, so it runs again
                                (at least once)
    overtaken                   the record is written under its version, so an owner that was
                                overtaken (StaleWriter) changes no count
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote

import msgspec

from cellfeed.bridge.triggers.retry import ProcessEnded, TimedOut
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.contract.values import StateEntry
from cellfeed.store.errors import StaleWriter
from cellfeed.store.failpoints import declare, failpoint

declare(
    "tries.before_counted",
    "tries.after_counted",
    "tries.before_struck_off",
    "tries.after_struck_off",
)

ERROR_TEXT_MAX: Final = 4_000
"""Characters of an error (its traceback's end) that are kept."""


class RecordedAttempts(msgspec.Struct, frozen=True):
    """On record: ``attempts`` whose end no process has reported. ``timed_out``: the last one
    ended by its time-out, with ``error``."""

    attempts: int
    timed_out: bool = False
    error: str = ""

    @property
    def kind(self) -> type[BaseException]:
        """Which retry policy counts."""
        return TimedOut if self.timed_out else ProcessEnded

    def error_text(self) -> str:
        """The error as it is kept with a parked cell."""
        if self.timed_out:
            return self.error
        times = "once" if self.attempts == 1 else f"{self.attempts} times"
        return (
            f"ProcessEnded: the process ended {times} while this cell was being run: an exit in the"
            " function, a crash, a kill, want of memory"
        )


class GroupAttempts:
    """The recorded tries of one group."""

    def __init__(self, state: StateTable, group: str, topic: str) -> None:
        self._state = state
        self._prefix = f"tries/{quote(group, safe='')}/{quote(topic, safe='')}/"

    def of_shards(self, shards: Iterable[int]) -> dict[int, ShardAttempts]:
        """The records of shards, which the caller must have claimed before."""
        found: dict[int, list[StateEntry]] = {}
        for entry in self._state.list(self._prefix):
            found.setdefault(int(entry.key[len(self._prefix) :].partition("/")[0]), []).append(
                entry
            )
        return {
            shard: ShardAttempts(self._state, f"{self._prefix}{shard}/", found.get(shard, ()))
            for shard in shards
        }


class ShardAttempts:
    """The recorded tries of one shard. One thread at a time runs its cells; :meth:`note_time_out`
    may be called by another one meanwhile."""

    def __init__(self, state: StateTable, prefix: str, entries: Iterable[StateEntry] = ()) -> None:
        self._state = state
        self._prefix = prefix
        self._known = {
            int(entry.key.rpartition("/")[2]): (
                msgspec.json.decode(entry.value, type=RecordedAttempts),
                entry.version,
            )
            for entry in entries
        }
        self._under_way: int | None = None

    def of(self, added_id: int) -> RecordedAttempts | None:
        """The tries of a cell that processes have left on record."""
        known = self._known.get(added_id) if self._known else None
        return known[0] if known else None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is on record."""
        return not self._known

    def left_behind(self) -> Mapping[int, RecordedAttempts]:
        """By cell, all that is on record but for the cell under way."""
        return {
            added_id: recorded
            for added_id, (recorded, _) in self._known.items()
            if added_id != self._under_way
        }

    def begin(self, added_id: int) -> None:
        """Counts a try that is about to be begun, and strikes off the one before in the same
        commit. Raises StaleWriter."""
        failpoint("tries.before_counted")
        before = self._known.get(added_id)
        self._write(
            added_id,
            RecordedAttempts(before[0].attempts + 1 if before else 1),
            finished=self._under_way if self._under_way != added_id else None,
        )
        self._under_way = added_id
        failpoint("tries.after_counted")

    def end(self) -> None:
        """Strikes off the cell that was under way: the function came back. Raises StaleWriter."""
        if self._under_way is None:
            return
        failpoint("tries.before_struck_off")
        self.strike_off(self._under_way)
        self._under_way = None
        failpoint("tries.after_struck_off")

    def strike_off(self, added_id: int) -> None:
        """Forgets the tries of a cell. Raises StaleWriter."""
        known = self._known.get(added_id)
        if (
            known is not None
            and self._state.commit(
                {self._key(added_id): None}, expect={self._key(added_id): known[1]}
            )
            is None
        ):
            raise self._overtaken(added_id)
        self._known.pop(added_id, None)

    def parked(self, added_id: int) -> dict[str, bytes | None]:
        """The state entry that strikes a cell off, to be written in the commit that parks it;
        :meth:`struck_off` says that it was."""
        return {self._key(added_id): None} if added_id in self._known else {}

    def struck_off(self, added_id: int) -> None:
        """See :meth:`parked`."""
        self._known.pop(added_id, None)
        if self._under_way == added_id:
            self._under_way = None

    def note_time_out(self, added_id: int, error: str) -> None:
        """Puts on record that the try under way has timed out, and counts it unless it was counted
        before. Raises StaleWriter."""
        before = self._known.get(added_id)
        counted = before is not None and self._under_way == added_id
        attempts = (before[0].attempts if before else 0) + (0 if counted else 1)
        self._write(
            added_id, RecordedAttempts(attempts, timed_out=True, error=error[-ERROR_TEXT_MAX:])
        )
        self._under_way = None  # it stays on record

    def _write(
        self, added_id: int, recorded: RecordedAttempts, finished: int | None = None
    ) -> None:
        write: dict[str, bytes | None] = {self._key(added_id): msgspec.json.encode(recorded)}
        known = self._known.get(added_id)
        expect: dict[str, int | None] = {self._key(added_id): known[1] if known else None}
        if finished is not None and finished in self._known:
            write[self._key(finished)] = None
            expect[self._key(finished)] = self._known[finished][1]
        version = self._state.commit(write, expect=expect)
        if version is None:
            raise self._overtaken(added_id)
        self._known[added_id] = recorded, version
        if finished is not None:
            self._known.pop(finished, None)

    def _key(self, added_id: int) -> str:
        return f"{self._prefix}{added_id:020d}"

    def _overtaken(self, added_id: int) -> StaleWriter:
        return StaleWriter(f"another worker has begun on cell {added_id} of {self._prefix}")
