"""The work of one trigger on one shard, under a claim.

For each cell, in log order: run it, or after its last try park it; then the offset moves. The
offset is saved behind the work, after a chunk of cells or a short while, and always before the
shard is given back. Crash points:

    before or inside the run    the offset is before the cell: it runs again
    after the run, before the save    the same: at least once
    in the save, in parking     see ``position.py``: one commit each, and a parked cell comes with
                                the offset past it (I14)
    a process that died         its cells that may have been under way are run with each try on
                                record, see ``recorded_attempts.py``

**Batches.** A batch that still fails after its tries is halved, and each half tried once, down to
single cells, which get all their tries: so the ones that fail are found and parked, and the others
run. The offset follows half by half, so after a crash in between unsaved cells run again as whole
batches.

**Order by row key.** A cell whose row key has a parked cell is parked as well, unrun
(``parking.py``, ``parked_retry.py``).

**Sweeps.** While nothing is amiss, the cells of a shard that keeps up with its log may be run
together with those of others (``sweep.py``): the run then names its next cells, and moves when the
sweep says so. A run's first chunk is its own, and so is the next one after anything that went
wrong.
"""

from __future__ import annotations

import time
from contextlib import nullcontext

from cellfeed.bridge.groups.progress_records import Progress
from cellfeed.bridge.triggers.shard.attempts import Attempts, Failed, Stopped
from cellfeed.bridge.triggers.shard.batches import CHUNK_CELLS, LIVE_CELLS_MAX, Batches
from cellfeed.bridge.triggers.shard.context import ShardContext
from cellfeed.bridge.triggers.shard.parked_retry import ParkedRetry
from cellfeed.bridge.triggers.shard.parking import Parking
from cellfeed.bridge.triggers.shard.position import Position
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.contract.values import LogRange

__all__ = ["CHUNK_CELLS", "Progress", "ShardRun"]


class ShardRun:
    """See the module. Used by one thread at a time."""

    def __init__(self, context: ShardContext) -> None:
        self._trigger = context.trigger
        self.claim = context.claim
        self.epoch = context.epoch
        """Of the session in which the shard was claimed."""
        self.stop = context.stop
        """Set to have the run end after the cell that is under way."""
        self.progress = context.progress
        self._recorded = context.recorded
        self._position = Position(context)
        self._attempts = Attempts(context, self._position)
        self._retry = ParkedRetry(context, self._attempts)
        self._parking = Parking(context, self._position, self._retry)
        engine = context.of_trigger.store.engine
        self._batches = Batches(
            self._trigger,
            lambda location, limit: engine.scan(context.shard, location, limit),
            self._is_batch_of_one,
        )
        self._careful_before = context.careful_before
        self._careful_left = CHUNK_CELLS + (self._trigger.batch or 0)
        """Cells that can have been run since the last save: no further ones were under way."""
        self._has_settled_recorded = False
        self._is_outside_sweep = True

    @property
    def is_overdue(self) -> bool:
        """Whether its function has timed out. It does not come to an end then but with its process,
        and is not given back before."""
        return self._attempts.overdue

    @property
    def stopped_trigger(self) -> bool:
        """Whether its last chunk parked the cell that was one too many."""
        return self._parking.stopped_trigger

    def has_work(self, watermark: int) -> bool:
        """Whether there are cells to run, or an offset that could not be saved and is due to be
        tried again. A thread that is at work hears how far the log goes."""
        self._batches.log_end = watermark
        return (
            self.progress.location < watermark and self._batches.may_have(watermark)
        ) or self._position.is_due(lazily=self._trigger.saves_lazily)

    def rests(self, watermark: int) -> bool:
        """Whether nothing but a new head, or a parked cell that is due, can give it work: it has
        come to the end of its log, no batch waits, and its offset is saved."""
        return self.progress.location >= watermark and self._position.is_saved

    def run_chunk(self) -> bool:
        """Works through the next cells; True when there may be more. Raises StaleWriter when the
        claim is void."""
        self._parking.stopped_trigger = False
        self._position.save_what_failed()
        self._settle_recorded()
        self._parking.look_at_rows()
        before = self.progress.location
        with self._trigger.backlog_turn if self._batches.is_behind(before) else nullcontext():
            for cells, behind in self._batches.next_chunk(before):
                if self.stop.is_set() or (cells and not self._work_off(cells)):
                    break
                self.progress.location = behind
                self._position.save_if_due()
        self._recorded.end()
        lazily = self._trigger.saves_lazily and not self._position.is_awaited
        if lazily and not self.stop.is_set():
            self._position.save_if_due()
        else:
            self._position.save()
        self._is_outside_sweep = False
        return self.progress.location > before

    # --- in a sweep -------------------------------------------------------------------------------

    @property
    def is_live(self) -> bool:
        """Whether its next cells, if there are any, may be run with those of other shards."""
        location = self.progress.location
        plain = not (
            self._is_outside_sweep
            or self.stop.is_set()
            or self._position.is_away
            or self._is_careful(location)
        )
        return plain and self._recorded.is_empty and self._batches.left(location) <= LIVE_CELLS_MAX

    def next_range(self) -> LogRange:
        """Where its next cells are; of none where it has come to the end of its log."""
        return LogRange(
            self.claim.partition, self.progress.location, self._batches.left(self.progress.location)
        )

    def make_sure(self) -> None:
        """Raises StaleWriter when the shard is another worker's by now."""
        self._position.make_sure()

    def move_to(self, location: int, cells: int) -> None:
        """Everything below ``location`` is done: so many cells were run."""
        self.progress.run += cells
        self.progress.location = location
        self.progress.last_progress_s = time.time()
        self.progress.because = f"came to {location - 1}"

    def leave_sweep(self) -> None:
        """Runs the next chunk outside the sweep, after any result of its sweep."""
        self._is_outside_sweep = True

    @property
    def position(self) -> Position:
        """Its position, and the saved one."""
        return self._position

    # --- at the end -------------------------------------------------------------------------------

    def save(self) -> None:
        """Saves how far it has come. Raises StaleWriter when the claim is void."""
        self._position.save()

    def keep(self) -> None:
        """Writes this run's location to the datastore, whether the coordination has it or not,
        unless another worker has begun on the shard."""
        self._position.keep()

    def retry_parked(self, only_asked: bool) -> int:
        """Tries parked cells of this shard again, once each; how many ran."""
        self._settle_recorded()
        self._position.make_sure()
        if self._position.parking_is_unanswered:
            if self._position.is_saved:
                # the coordination is back: claimed again, the shard has all that was on its way
                self.stop.set()
            return 0
        return self._retry.run(only_asked)

    def _settle_recorded(self) -> None:
        if not self._has_settled_recorded:
            self._retry.settle(self.progress.location)
            self._has_settled_recorded = True

    # --- running ----------------------------------------------------------------------------------

    def _work_off(self, cells: list[StoredCell]) -> bool:
        """Runs cells in order, or parks them. False when they are not all dealt with: it is time
        to stop."""
        parts = [(cells, True)]
        while parts:
            part, whole = parts.pop()
            ahead = self._parking.first_behind(part)
            if ahead:
                parts.append((part[ahead:], whole))
                part = part[:ahead]
            elif ahead == 0:
                self._parking.park_behind(part[0])
                self._move_past(part[0])
                parts.extend([(part[1:], whole)] if part[1:] else [])
                if self._parking.stopped_trigger:
                    return False
                continue
            self._position.make_sure()
            result = self._attempts.run(
                part,
                on_record=len(part) == 1 and self._counts_attempt(part[0]),
                attempts_max=None if whole or len(part) == 1 else 1,
            )
            if isinstance(result, Stopped):
                return False
            if isinstance(result, Failed) and len(part) > 1:
                half = len(part) // 2
                parts += [(part[half:], False), (part[:half], False)]
                continue
            if isinstance(result, Failed):
                self._parking.park(part[0], result)
            else:
                self.progress.run += len(part)
            self._move_past(part[-1])
            if self._parking.stopped_trigger or (parts and self.stop.is_set()):
                return False
        return True

    def _move_past(self, cell: StoredCell) -> None:
        self.progress.location = cell.added_id + 1
        self.progress.last_progress_s = time.time()
        self.progress.because = f"came to {cell.added_id}"
        self._position.save_if_due()

    def _is_careful(self, added_id: int) -> bool:
        return added_id < self._careful_before and self._careful_left > 0

    def _is_batch_of_one(self, added_id: int) -> bool:
        return self._is_careful(added_id) or self._recorded.of(added_id) is not None

    def _counts_attempt(self, cell: StoredCell) -> bool:
        """Whether a try of a cell is counted beforehand."""
        if not self._is_careful(cell.added_id):
            return self._recorded.of(cell.added_id) is not None
        self._careful_left -= 1
        return True
