"""The next cells of all shards that keep up with their logs, read and run together: one look at the
logs, one call of the function, one save.

Cells may come in one by one, all over the shards. Then a thread for each shard and a commit for
each cell would cost several times the work itself. A sweep goes over all shards that are **live**
(:attr:`ShardRun.is_live`): a few cells to go at most, and nothing amiss. For triggers that can do
that (:attr:`Trigger.together`).

A sweep is only a short cut. It moves a shard only when the cells before its new place are done, and
**where anything goes wrong, it moves none**: each of its shards has its next chunk to itself, which
tries, waits, halves, parks and reports as ever. Then it is live again. Crash points:

    before or in the call         the offsets are before the cells: they run again
    after it, before the save     the same: at least once
    in the save                   one commit for some hundreds of shards, under all their claims:
                                  where one is void, nothing is saved, and each saves its own

So its cells are in the order of each shard's log, and are run under claims that were made sure of.
They come again at most as often as those of a chunk.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.triggers.offsets.gathered_saves import OFFSETS_IN_A_COMMIT_MAX, OffsetCommits
from cellfeed.bridge.triggers.program import Trigger
from cellfeed.bridge.triggers.shard.run import ShardRun
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import LogRange
from cellfeed.store.errors import CellfeedError, Unavailable
from cellfeed.store.failpoints import ProcessEnds, failpoint
from cellfeed.store.limits import SCAN_BYTES_MAX

_log = logging.getLogger("cellfeed.triggers")

SWEEP_CELLS_MAX: Final = 2_000
"""Cells of one sweep. The shards behind them are the first in the next one."""

_CELLS_MIN: Final = 100
"""So many are read however large the last ones were."""


class Sweep:
    """Of one trigger that has ``together``. Used by one thread at a time, each time with runs that
    nobody else uses meanwhile."""

    def __init__(self, trigger: Trigger, engine: Engine, offsets: OffsetCommits) -> None:
        self._trigger = trigger
        self._engine = engine
        self._offsets = offsets
        self._cells_max = SWEEP_CELLS_MAX
        self._first = 0

    def run(self, runs: Sequence[ShardRun]) -> None:
        """Brings the runs, which are live, up to their heads, and saves where they are when it is
        time to."""
        try:
            self._run_cells(runs)
            self._save(runs)
        except ProcessEnds:
            raise
        except BaseException as error:
            _log.debug("%s: each shard continues by itself: %s", self._trigger.group, error)
            for run in runs:
                run.leave_sweep()

    def _run_cells(self, runs: Sequence[ShardRun]) -> None:
        wanted = self._ranges(runs)
        found = self._engine.scan_many([each for _, each in wanted]) if wanted else []
        cells: dict[int, list[StoredCell]] = {}
        body_bytes = 0
        for (run, each), there in zip(wanted, found, strict=True):
            if taken := [cell for cell in there if self._trigger.takes(cell)]:
                run.make_sure()
                cells[each.shard] = taken
            body_bytes += sum(len(cell.body) for cell in there)
        if cells and self._trigger.together is not None:
            failpoint("trigger.before_run")
            self._trigger.together(cells)
            failpoint("trigger.after_run")
        for (run, each), there in zip(wanted, found, strict=True):
            if there:
                run.move_to(there[-1].added_id + 1, len(cells.get(each.shard, ())))
            else:
                # the heads showed more than the log gives just now: there is no use in sweeping
                # again at once
                run.leave_sweep()
        # Large cells: fewer are read the next time, more again when they are small.
        self._cells_max = (
            max(_CELLS_MIN, self._cells_max // 2)
            if body_bytes > SCAN_BYTES_MAX
            else min(SWEEP_CELLS_MAX, self._cells_max * 2)
        )

    def _ranges(self, runs: Sequence[ShardRun]) -> list[tuple[ShardRun, LogRange]]:
        wanted: list[tuple[ShardRun, LogRange]] = []
        left, first, self._first = self._cells_max, self._first, 0
        for run in sorted(runs, key=lambda run: (run.claim.partition < first, run.claim.partition)):
            each = run.next_range()
            if each.limit and not left:
                self._first = each.shard
                break
            if each.limit:
                wanted.append((run, each._replace(limit=min(each.limit, left))))
                left -= wanted[-1][1].limit
        return wanted

    def _save(self, runs: Sequence[ShardRun]) -> None:
        """Of all runs together when one of them is due: a commit of many offsets costs the same as
        one of a few."""
        if not any(run.position.is_due(lazily=True) for run in runs):
            return
        moved = [run for run in runs if not run.position.is_saved]
        for start in range(0, len(moved), OFFSETS_IN_A_COMMIT_MAX):
            self._save_together(moved[start : start + OFFSETS_IN_A_COMMIT_MAX])

    def _save_together(self, moved: Sequence[ShardRun]) -> None:
        failpoint("trigger.before_save")
        offsets = {
            (run.claim.topic, run.claim.partition): CommittedOffset(run.progress.location)
            for run in moved
        }
        try:
            self._offsets.commit_offsets(
                self._trigger.group, offsets, claims=[run.claim for run in moved]
            )
        except Unavailable as error:
            for run in moved:
                with suppress(CellfeedError):
                    # the run meets any such error again when it saves by itself, before anything
                    # else
                    run.position.not_saved(run.progress.location, {}, error)
            raise
        for run in moved:
            run.position.saved(run.progress.location)
        failpoint("trigger.after_save")
