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
run. The offset follows half by half, so a crash in between runs what was not saved again, whole.

**Order by row key.** A cell whose row key has a parked cell is parked as well, unrun
(``parked.py``, ``parked_retry.py``). Which row keys those are follows from the queue of parked
cells, read when the shard is begun and whenever there were any: only this run adds to it.

**Sweeps.** While nothing is amiss, the cells of a shard that keeps up with its log may be run
together with those of others (``sweep.py``): the run then says what is next, and moves when the
sweep says so. A run's first chunk is its own, and so is the next one after anything that went
wrong.
"""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from typing import Final
from uuid import UUID

from cellfeed.bridge.coordination.contract import Claim
from cellfeed.bridge.groups.membership import Membership
from cellfeed.bridge.groups.progress_records import Progress
from cellfeed.bridge.triggers.offsets.gathered_saves import OffsetCommits
from cellfeed.bridge.triggers.offsets.kept_offsets import Foothold
from cellfeed.bridge.triggers.parked.cells import ParkedCell, ParkedCells
from cellfeed.bridge.triggers.process_death.deadlines import Deadlines
from cellfeed.bridge.triggers.process_death.recorded_attempts import GroupTries, ShardTries
from cellfeed.bridge.triggers.program import Trigger
from cellfeed.bridge.triggers.shard.attempts import Attempts, Failed, Stopped
from cellfeed.bridge.triggers.shard.batches import CHUNK_CELLS, LIVE_CELLS_MAX, Parts
from cellfeed.bridge.triggers.shard.parked_retry import ParkedRetry
from cellfeed.bridge.triggers.shard.position import Place
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import LogRange
from cellfeed.store.failpoints import declare, failpoint

__all__ = ["CHUNK_CELLS", "Progress", "ShardRun"]

declare("trigger.before_park", "trigger.after_park")

_HELD_PER_PARKED_MAX: Final = 100
"""A trigger that keeps order stops when so many times ``parked_max`` cells are parked or held: a
row key that never ends must not fill the state table."""

_COUNT_HELD_EVERY: Final = 50
"""Held cells between two countings, each of which reads all parked cells of the group."""


class ShardRun:
    """See the module. Used by one thread at a time. ``saved`` is the shard's offset as read under
    the claim; ``foothold`` is for coordination elsewhere.

    ``tries``: what earlier owners left on record. ``careful_before``: cells below it may have been
    under way in a process that died; 0 when the shard was given back.
    """

    def __init__(
        self,
        trigger: Trigger,
        store: Datastore,
        offsets: OffsetCommits,
        parked: ParkedCells,
        claim: Claim,
        membership: Membership,
        epoch: int,
        saved: int = 0,
        foothold: Foothold | None = None,
        *,
        tries: ShardTries | None = None,
        careful_before: int = 0,
        deadlines: Deadlines | None = None,
    ) -> None:
        self._trigger = trigger
        self._store = store
        self._parked = parked
        self.claim = claim
        self.epoch = epoch
        """Of the session in which the shard was claimed."""
        self.too_many_parked = False
        self.stop = threading.Event()
        """Set to have the run end after the cell that is under way."""
        self.progress = Progress()
        shard = claim.partition
        self._place = Place(
            trigger.group, offsets, claim, membership, epoch, saved, foothold, self.progress
        )
        self._tries = (
            tries or GroupTries(store.state, trigger.group, claim.topic).of_shards([shard])[shard]
        )
        self._attempts = Attempts(
            trigger,
            store,
            shard,
            self._tries,
            self._place,
            self.progress,
            self.stop,
            deadlines or Deadlines(),
        )
        self._retry = ParkedRetry(
            trigger, store, parked, (claim.topic, shard), self._tries, self._attempts, self.stop
        )
        self._parts = Parts(
            trigger,
            lambda location, limit: store.engine.scan(shard, location, limit),
            self._is_alone,
        )
        self._careful_before = careful_before
        self._careful_left = CHUNK_CELLS + (trigger.batch or 0)
        """Cells that can have been run since the last save: no more of them were under way."""
        self._settled = False
        self._alone = True
        self._rows_parked: set[bytes] | None = None
        self._held_since_counted = 0

    @property
    def is_overdue(self) -> bool:
        """Whether its function has timed out. It does not come to an end then but with its process,
        and is not given back before."""
        return self._attempts.overdue

    def has_work(self, watermark: int) -> bool:
        """Whether there are cells to run, or an offset that could not be saved and is due to be
        tried again. A thread that is at work hears how far the log goes."""
        self._parts.log_end = watermark
        return (
            self.progress.location < watermark and self._parts.may_have(watermark)
        ) or self._place.is_due(lazily=self._trigger.saves_lazily)

    def run_chunk(self) -> bool:
        """Works through the next cells; True when there may be more. Raises StaleWriter when the
        claim is void."""
        self._place.save_what_failed()
        self._settle()
        self._look_at_rows()
        before = self.progress.location
        with self._trigger.backlog_turn if self._parts.is_behind(before) else nullcontext():
            for cells, behind in self._parts.next_chunk(before):
                if self.stop.is_set() or (cells and not self._work_off(cells)):
                    break
                self.progress.location = behind
                self._place.save_if_due()
        self._tries.end()
        if self._trigger.saves_lazily and not self.stop.is_set():
            self._place.save_if_due()
        else:
            self._place.save()
        self._alone = False
        return self.progress.location > before

    # --- in a sweep -------------------------------------------------------------------------------

    @property
    def is_live(self) -> bool:
        """Whether its next cells, if there are any, may be run with those of other shards."""
        location = self.progress.location
        plain = not (
            self._alone or self.stop.is_set() or self._place.is_away or self._is_careful(location)
        )
        return plain and self._tries.is_empty and self._parts.left(location) <= LIVE_CELLS_MAX

    def next_range(self) -> LogRange:
        """Where its next cells are; of none where it has come to the end of its log."""
        return LogRange(
            self.claim.partition, self.progress.location, self._parts.left(self.progress.location)
        )

    def make_sure(self) -> None:
        """Raises StaleWriter when the shard is another worker's by now."""
        self._place.make_sure()

    def move_to(self, location: int, cells: int) -> None:
        """Everything below ``location`` is done: so many cells were run."""
        self.progress.run += cells
        self.progress.location = location
        self.progress.last_progress_s = time.time()
        self.progress.because = f"came to {location - 1}"

    def go_alone(self) -> None:
        """Has the next chunk run by itself, whatever the sweep that it was in came to."""
        self._alone = True

    @property
    def place(self) -> Place:
        """Where it is, and what is saved of it."""
        return self._place

    # --- at the end -------------------------------------------------------------------------------

    def save(self) -> None:
        """Saves how far it has come. Raises StaleWriter when the claim is void."""
        self._place.save()

    def keep(self) -> None:
        """Has the datastore know how far this run has come, whatever the coordination holds, unless
        another worker has begun on the shard."""
        self._place.keep()

    def retry_parked(self, only_asked: bool) -> int:
        """Tries parked cells of this shard again, once each; how many ran."""
        self._settle()
        self._place.make_sure()
        if self._place.may_park_again:
            if self._place.is_saved:
                # the coordination is back: claimed again, the shard has all that was on its way
                self.stop.set()
            return 0
        return self._retry.run(only_asked)

    def _settle(self) -> None:
        if not self._settled:
            self._retry.settle(self.progress.location)
            self._settled = True

    # --- running ----------------------------------------------------------------------------------

    def _work_off(self, cells: list[StoredCell]) -> bool:
        """Runs, parks or holds cells, in order. False when they are not all dealt with: it is time
        to stop."""
        parts = [(cells, True)]
        while parts:
            part, whole = parts.pop()
            if self._rows_parked:
                held = next(
                    (index for index, cell in enumerate(part) if cell.row_key in self._rows_parked),
                    len(part),
                )
                if held < len(part) and held:
                    parts.append((part[held:], whole))
                    part = part[:held]
                elif not held:
                    self._hold(part[0])
                    self._move_past(part[0])
                    parts.extend([(part[1:], whole)] if part[1:] else [])
                    if self.too_many_parked:
                        return False
                    continue
            self._place.make_sure()
            result = self._attempts.run(
                part,
                on_record=len(part) == 1 and self._counts_tries(part[0]),
                tries_max=None if whole or len(part) == 1 else 1,
            )
            if isinstance(result, Stopped):
                return False
            if isinstance(result, Failed) and len(part) > 1:
                half = len(part) // 2
                parts += [(part[half:], False), (part[:half], False)]
                continue
            if isinstance(result, Failed):
                self._park(part[0], result)
            else:
                self.progress.run += len(part)
            self._move_past(part[-1])
            if self.too_many_parked or (parts and self.stop.is_set()):
                return False
        return True

    def _move_past(self, cell: StoredCell) -> None:
        self.progress.location = cell.added_id + 1
        self.progress.last_progress_s = time.time()
        self.progress.because = f"came to {cell.added_id}"
        self._place.save_if_due()

    def _is_careful(self, added_id: int) -> bool:
        return added_id < self._careful_before and self._careful_left > 0

    def _is_alone(self, added_id: int) -> bool:
        return self._is_careful(added_id) or self._tries.of(added_id) is not None

    def _counts_tries(self, cell: StoredCell) -> bool:
        """Whether a try of a cell is counted beforehand."""
        if not self._is_careful(cell.added_id):
            return self._tries.of(cell.added_id) is not None
        self._careful_left -= 1
        return True

    # --- parking ----------------------------------------------------------------------------------

    def _look_at_rows(self) -> None:
        if self._trigger.order_by_row_key and self._rows_parked != set():
            self._rows_parked = {UUID(cell.row_key).bytes for cell in self._retry.parked()}

    def _park(self, cell: StoredCell, failed: Failed) -> None:
        self._park_with(cell, failed, held=False)
        if self._rows_parked is not None:
            self._rows_parked.add(cell.row_key)
        count = self._parked.count_failed(self._trigger.group)
        if count >= self._trigger.parked_max:
            self._stop_trigger(
                f"{count} cells are parked, the limit is {self._trigger.parked_max}; the last one"
                f" is {self.claim.partition}/{cell.added_id}"
            )

    def _hold(self, cell: StoredCell) -> None:
        self._place.make_sure()
        self._park_with(
            cell, Failed("held: an earlier cell of its row key is parked", 0), held=True
        )
        self._held_since_counted += 1
        if self._held_since_counted >= _COUNT_HELD_EVERY:
            self._held_since_counted = 0
            limit = _HELD_PER_PARKED_MAX * self._trigger.parked_max
            if (count := self._parked.count(self._trigger.group)) >= limit:
                self._stop_trigger(
                    f"{count} cells are parked or held behind parked ones, the limit is {limit}"
                )

    def _park_with(self, cell: StoredCell, failed: Failed, *, held: bool) -> None:
        now_us = time.time_ns() // 1000
        parked = ParkedCell(
            group=self._trigger.group,
            topic=self.claim.topic,
            partition=self.claim.partition,
            added_id=cell.added_id,
            row_key=str(UUID(bytes=cell.row_key)),
            column_name=cell.column_name,
            ref_key=cell.ref_key,
            error=failed.error,
            attempts=failed.attempts,
            parked_at_us=now_us,
            last_tried_at_us=now_us,
            ended=failed.ended,
            in_order=self._trigger.order_by_row_key,
            held=held,
        )
        failpoint("trigger.before_park")
        self._place.save_with(
            cell.added_id + 1, {**self._parked.entry(parked), **self._tries.parked(cell.added_id)}
        )
        self._tries.struck_off(cell.added_id)
        failpoint("trigger.after_park")
        self._retry.drop_erased([parked])
        self.progress.parked += 1

    def _stop_trigger(self, reason: str) -> None:
        self.too_many_parked = True
        self._parked.stop(self._trigger.group, reason)
