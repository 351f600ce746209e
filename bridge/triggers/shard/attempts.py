"""Running a trigger's function until it succeeds, its tries are used up, or it is time to stop.

Any exception of a function is its cell's failure, ``KeyboardInterrupt`` and ``CancelledError`` too:
a signal reaches the main thread of a process, never one that runs a function. A store that is away
is no fault of a cell: it takes none of its tries, and the shard waits. While the trigger pauses
(``circuit.py``), a cell makes way and keeps its tries.

Crash points: see ``recorded_attempts.py`` (tries that are counted across processes) and
``deadlines.py`` (time-outs); otherwise a call that did not come to its end leaves the offset before
its cells, so they run again.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cellfeed.bridge.triggers.process_death.deadlines import Call
from cellfeed.bridge.triggers.shard.context import ShardContext
from cellfeed.bridge.triggers.shard.position import Position
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.errors import Unavailable
from cellfeed.store.failpoints import ProcessEnds, declare, failpoint

declare("trigger.before_run", "trigger.after_run")


@dataclass(frozen=True, slots=True)
class Failed:
    """The tries are used up. ``ended``: how many of them ended the process, or may have."""

    error: str
    attempts: int
    ended: int = 0


class Stopped:
    """It was time to stop before the cells were done: they run again."""


class Done:
    """The function came back."""


Result = Done | Stopped | Failed
DONE: Final = Done()
STOPPED: Final = Stopped()


@dataclass(frozen=True, slots=True)
class _Raised:
    """The failure of one try."""

    error: BaseException
    text: str


class Attempts:
    """Of one shard's run. Used by one thread at a time."""

    def __init__(self, context: ShardContext, position: Position) -> None:
        self._trigger = context.trigger
        self._shard = context.shard
        self._call = self._trigger.caller(context.of_trigger.store, self._shard)
        self._recorded = context.recorded
        self._position = position
        self._progress = context.progress
        self._stop = context.stop
        self._deadlines = context.of_trigger.deadlines
        self._circuit = context.of_trigger.circuit
        self._failures = context.of_trigger.failures
        self._made_way: tuple[int, int] | None = None
        """The cell, or first of a batch, that made way for a pause, and its tries."""
        self.overdue = False
        """Whether a call has timed out: it may be at it still."""

    def run(
        self,
        cells: Sequence[StoredCell],
        *,
        on_record: bool = False,
        suspect: bool = False,
        attempts_max: int | None = None,
        is_parked: bool = False,
    ) -> Result:
        """Runs the function for cells: several of a batch, or one. ``on_record``: counted
        beforehand, see ``recorded_attempts.py``; for one cell.

        ``suspect``: it has ended a process before, as any with a try on record may have.
        ``attempts_max``: at most so many tries, also where the policy allows more. ``is_parked``:
        it is tried again, and says nothing about the trigger when it fails.
        """
        if not on_record:
            return self._run(cells, 0, attempts_max, counted=True, is_parked=is_parked)
        left = self._recorded.of(cells[0].added_id)
        ended = left.attempts if left else 0
        if left and ended >= (attempts_max or self._trigger.policy_for(left.kind).attempts):
            return Failed(left.error_text(), ended, ended)
        if left:
            # should this be the end of the process again, only this cell runs again
            self._position.save()
        suspect = suspect or left is not None
        with self._deadlines.quarantine.on_record(suspect, self._stop) as may_run:
            if not may_run:
                return STOPPED
            self._position.make_sure()
            result = self._run(cells, ended, attempts_max, counted=False, is_parked=is_parked)
            if suspect and isinstance(result, Done):
                self._recorded.end()  # at once: it must not count for the next suspect's death
        return result

    def _run(
        self,
        cells: Sequence[StoredCell],
        ended: int,
        attempts_max: int | None,
        *,
        counted: bool,
        is_parked: bool,
    ) -> Result:
        times_away, first = 0, cells[0].added_id
        attempts = ended
        if not is_parked:
            attempts, self._made_way = max(ended, self._tries_before(first)), None
        while True:
            if not self._circuit.may_try():
                return STOPPED if is_parked else self._make_way(first, attempts)
            try:
                if not counted:
                    self._recorded.begin(first)
                    counted = True
                raised = self._try(cells)
            except Unavailable as away:
                times_away += 1
                self._progress.because = f"cell {first} waits for the store: {away}"
                if self._stop.wait(self._trigger.policy_for(type(away)).wait_s(times_away)):
                    return STOPPED
                self._position.make_sure()
                continue
            if raised is None:
                self._circuit.succeeded()
                return DONE
            if isinstance(raised, Stopped):
                return STOPPED
            attempts += 1
            what = f"{_named(cells)} of shard {self._shard}"
            self._failures.failed(what, attempts, raised.error, raised.text)
            if not is_parked:
                self._circuit.failed(cells[0].row_key, raised.error)
            policy = self._trigger.policy_for(type(raised.error))
            if attempts >= (attempts_max or policy.attempts):
                if is_parked or len(cells) > 1 or self._circuit.may_park():
                    return Failed(raised.text, attempts, ended)
                return self._make_way(first, attempts)
            # its text may quote a body
            self._progress.because = (
                f"{_named(cells)} failed {attempts} times: {type(raised.error).__name__}"
            )
            if self._stop.wait(policy.wait_s(attempts)):
                return STOPPED
            self._position.make_sure()

    def _tries_before(self, first: int) -> int:
        """Tries of a cell that made way for a pause, in this run of its shard."""
        return self._made_way[1] if self._made_way and self._made_way[0] == first else 0

    def _make_way(self, first: int, attempts: int) -> Stopped:
        self._made_way = first, attempts
        self._progress.because = f"cell {first} waits: the trigger {self._circuit.paused_because}"
        return STOPPED

    def _try(self, cells: Sequence[StoredCell]) -> _Raised | Stopped | None:
        failpoint("trigger.before_run")
        timeout_s = self._trigger.timeout_s
        self._progress.running = cells[0].added_id
        try:
            if timeout_s is None:
                self._call(cells)
            elif not self._in_time(cells, timeout_s):
                # The process is about to end, and the try is on record: after any outcome of the
                # call its cells run again.
                self._stop.set()
                return STOPPED
        except (Unavailable, ProcessEnds):
            raise
        except BaseException as error:
            return _Raised(error, traceback.format_exc(limit=-8))
        finally:
            self._progress.running = None
        failpoint("trigger.after_run")
        return None

    def _in_time(self, cells: Sequence[StoredCell], timeout_s: float) -> bool:
        """Calls the function; False when that took too long. Raises an error that the function
        raises in time."""
        call = Call(
            f"{self._trigger.group}: {_named(cells)} of shard {self._shard}",
            timeout_s,
            lambda error: self._note_time_out(cells, error),
        )
        self._deadlines.begin(call)
        failed: BaseException | None = None
        try:
            self._call(cells)
        except ProcessEnds:
            self._deadlines.end(call)
            raise
        except BaseException as error:
            failed = error
        if not self._deadlines.end(call):
            return False
        if failed is not None:
            raise failed
        return True

    def _note_time_out(self, cells: Sequence[StoredCell], error: str) -> None:
        """By the watching thread. The shard's next owner finds the cell of a batch: it runs them
        one by one."""
        self._progress.because = f"{_last_line(error)}: the process ends"
        if len(cells) == 1:
            self._recorded.note_time_out(cells[0].added_id, error)
        self.overdue = True


def _named(cells: Sequence[StoredCell]) -> str:
    return (
        f"cell {cells[0].added_id}"
        if len(cells) == 1
        else f"the batch of {len(cells)} cells from {cells[0].added_id} on"
    )


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2][:200]
