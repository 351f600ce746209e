"""The work of one trigger on one shard, under a claim.

For each cell, in log order: run it, or after its last try park it; then the offset moves. The offset is saved behind the work, after a chunk of cells or a
short while, and always before the shard is given back. Crash points:

    before or inside the run    the offset is before the cell: it runs again
    after the run, before the save    the same: at least once
    in the save                 one commit: the old offset or the new one
    in parking                  one commit holds the parked cell and the offset past it: both or neither (I14)
    paused and overtaken        the next cell is not run: the coordinator is asked first once the lease may have run out, and says no (StaleWriter);
                                a save that was on its way is refused the same, so the new owner's offset stands
    coordination away           what would be saved or parked is kept in the datastore, in one commit again, and saved when coordination is back; see
                                ``foothold.py``
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from bridge.coordination.contract import Claim, CommittedOffset, Coordinator
from bridge.triggers.foothold import Foothold
from bridge.triggers.parked import ParkedCell, ParkedCells
from bridge.triggers.program import Trigger
from bridge.triggers.standing import Standing
from store.api import CellStore
from store.cells import Cell
from store.errors import CellfeedError, StaleWriter, Unavailable
from store.failpoints import declare, failpoint

declare("trigger.before_run", "trigger.after_run", "trigger.before_save", "trigger.after_save", "trigger.before_park", "trigger.after_park")

CHUNK_CELLS: Final = 200
"""Cells read, and at most run, between two looks at whether the shard is still ours."""

_SAVE_EVERY_S: Final = 0.2
"""Longest time between two saves while cells are run: what is run again after a crash."""

_SAVE_AGAIN_S: Final = 0.5
"""How soon an idle shard tries again to save what could not be saved."""


@dataclass
class Progress:
    """What a shard's run tells of itself."""

    location: int = 0
    run: int = 0
    parked: int = 0
    last_progress_s: float = 0.0
    because: str = "not started"


class ShardRun:
    """See the module. Used by one thread at a time. ``saved`` is the shard's offset as read under the claim; ``foothold`` is for coordination elsewhere."""

    def __init__(
        self,
        trigger: Trigger,
        store: CellStore,
        coordinator: Coordinator,
        parked: ParkedCells,
        claim: Claim,
        standing: Standing,
        epoch: int,
        saved: int = 0,
        foothold: Foothold | None = None,
    ) -> None:
        self._trigger = trigger
        self._store = store
        self._coordinator = coordinator
        self._parked = parked
        self.claim = claim
        self.epoch = epoch
        """Of the session in which the shard was claimed."""
        self._standing = standing
        self.too_many_parked = False
        self.stop = threading.Event()
        """Set to have the run end after the cell that is under way."""
        self.progress = Progress()
        self._foothold = foothold
        self._saved = saved
        self._save_again_at_s = 0.0
        self.progress.location = foothold.start if foothold else saved

    @property
    def _key(self) -> tuple[str, int]:
        return self.claim.topic, self.claim.partition

    def has_work(self, watermark: int) -> bool:
        """Whether there are cells to run, or an offset that could not be saved and is due to be tried again."""
        return self.progress.location < watermark or (self.progress.location != self._saved and time.monotonic() >= self._save_again_at_s)

    def run_chunk(self) -> bool:
        """Works through the next cells; True when there may be more. Raises StaleWriter when the claim is void."""
        piece = self._store.get_cells_for_shard(self.claim.partition, self.progress.location, CHUNK_CELLS)
        saved_at_s = time.monotonic()
        for cell in piece.cells:
            if self.stop.is_set():
                break
            if cell.column_name == self._trigger.column:
                self._make_sure()
                error, attempts = self._try(cell)
                if error is None:
                    self.progress.run += 1
                elif attempts < self._trigger.retry.attempts:
                    break  # asked to stop while it was failing: the cell is not done, and runs again
                else:
                    self._park(cell, error, attempts)
            self.progress.location = cell.added_id + 1
            if self.too_many_parked:
                break
            self.progress.last_progress_s = time.time()
            self.progress.because = f"came to {cell.added_id}"
            if time.monotonic() - saved_at_s > _SAVE_EVERY_S:
                self.save()
                saved_at_s = time.monotonic()
        self.save()
        return bool(piece.cells) and piece.next_location < piece.head.watermark

    def _make_sure(self) -> None:
        """Raises StaleWriter when the shard is another worker's by now: after a pause of the whole process the lease may have run out unnoticed."""
        if self._standing.is_sure(self.epoch):
            return
        location = self.progress.location
        # Saving asks as well, and leaves whoever may be about to take over nothing to run again.
        moved = {self._key: CommittedOffset(location)} if location != self._saved else {}
        try:
            self._coordinator.commit_offsets(self._trigger.group, moved, claims=[self.claim])
        except StaleWriter:
            self._keep_unless_overtaken()
            raise
        except Unavailable:
            if self._foothold is None:
                raise
            self._foothold.check()
        else:
            self._note_saved(location)

    def save(self) -> None:
        """Saves the offset if it moved, or keeps it where coordination is away. Raises StaleWriter when the claim is void."""
        if self.progress.location == self._saved:
            return
        failpoint("trigger.before_save")
        self._save(self.progress.location, {})
        failpoint("trigger.after_save")

    def keep(self) -> None:
        """Has the datastore know how far this run has come, whatever the coordination holds, unless another worker has begun on the shard."""
        if self._foothold is not None:
            with suppress(StaleWriter):
                self._foothold.keep(self.progress.location)

    def _save(self, location: int, entries: Mapping[str, bytes | None]) -> None:
        try:
            self._coordinator.commit_offsets(self._trigger.group, {self._key: CommittedOffset(location)}, claims=[self.claim], entries=entries)
        except StaleWriter:
            if not entries:
                self._keep_unless_overtaken()
            raise
        except Unavailable as error:
            if self._foothold is None:
                raise
            self._foothold.keep(location, entries, failed=error)
            self._save_again_at_s = time.monotonic() + _SAVE_AGAIN_S
            self.progress.because = f"came to {location}, which is kept here until it can be saved: {error}"
            return
        self._note_saved(location)

    def _note_saved(self, location: int) -> None:
        if location != self._saved:
            self._saved = location
            if self._foothold is not None:
                self._foothold.saved(location)

    def _keep_unless_overtaken(self) -> None:
        """A claim may be void before its new owner has begun, who then need not run these cells again."""
        with suppress(CellfeedError):
            self.keep()

    def retry_parked(self, only_asked: bool) -> int:
        """Tries parked cells of this shard again, once each; how many ran."""
        ran = 0
        for parked, version in self._parked.of_partition(self._trigger.group, *self._key).items():
            if self.stop.is_set() or (only_asked and not parked.retry_asked):
                continue
            piece = self._store.get_cells_for_shard(parked.partition, parked.added_id, 1)
            error = self._run_once(piece.cells[0])
            if error is None:
                ran += self._parked.resolved(parked, version)
            else:
                self._parked.failed_again(parked, version, error)
        return ran

    def _try(self, cell: Cell) -> tuple[str | None, int]:
        """Runs a cell until it succeeds, its tries are used up, or it is time to stop. The last error, and the tries.

        A store that is away is no fault of the cell: it takes none of its tries, and the shard waits.
        """
        attempts = waits = 0
        while True:
            try:
                error = self._run_once(cell)
            except Unavailable as away:
                waits += 1
                self.progress.because = f"cell {cell.added_id} waits for the store: {away}"
                if self.stop.wait(self._trigger.retry.wait_s(waits)):
                    return str(away), 0
                self._make_sure()
                continue
            attempts += 1
            if error is None or attempts >= self._trigger.retry.attempts:
                return error, attempts
            self.progress.because = f"cell {cell.added_id} failed {attempts} times"
            if self.stop.wait(self._trigger.retry.wait_s(attempts)):
                return error, attempts

    def _run_once(self, cell: Cell) -> str | None:
        failpoint("trigger.before_run")
        try:
            self._trigger.call(cell, self._store)
        except Unavailable:
            raise
        except Exception:
            return traceback.format_exc(limit=-8)
        failpoint("trigger.after_run")
        return None

    def _park(self, cell: Cell, error: str, attempts: int) -> None:
        now_us = time.time_ns() // 1000
        parked = ParkedCell(
            group=self._trigger.group,
            topic=self.claim.topic,
            partition=self.claim.partition,
            added_id=cell.added_id,
            row_key=str(cell.row_key),
            column_name=cell.column_name,
            ref_key=cell.ref_key,
            error=error,
            attempts=attempts,
            parked_at_us=now_us,
            last_tried_at_us=now_us,
        )
        failpoint("trigger.before_park")
        self._save(cell.added_id + 1, self._parked.entry(parked))
        failpoint("trigger.after_park")
        self.progress.parked += 1
        count = self._parked.count(self._trigger.group)
        self.too_many_parked = count >= self._trigger.parked_max
        if self.too_many_parked:
            self._parked.stop(self._trigger.group, f"{count} cells are parked, the limit is {self._trigger.parked_max}; the last error: {error[-300:]}")
