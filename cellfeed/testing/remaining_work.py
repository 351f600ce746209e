"""The remaining work of triggers: cells that they have not passed, and parked ones to be tried."""

from __future__ import annotations

import time
from collections.abc import Sequence

from cellfeed.bridge.triggers.offsets.kept_offsets import last_known
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.triggers.program import Trigger
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.testing.coordination import Coordination
from cellfeed.testing.faults import Fault, Stall
from cellfeed.testing.history import History, RunOutcome


class RemainingWork:
    """Of these triggers. Looked at by one thread."""

    def __init__(
        self,
        triggers: Sequence[Trigger],
        engine: Engine,
        coordination: Coordination,
        history: History,
    ) -> None:
        self._triggers = triggers
        self._engine = engine
        self._coordination = coordination
        self._history = history

    def left(self, *, is_away: bool) -> dict[tuple[str, int], str]:
        """By (group, shard): the remaining work. ``is_away``: the coordination cannot be
        asked. Raises Unavailable."""
        left = {}
        located = {
            trigger.group: self._locations(trigger.group, is_away) for trigger in self._triggers
        }
        # The heads after the offsets: a cell that a function put before its offset moved is seen.
        heads = self._engine.heads()
        for group, locations in located.items():
            for shard, head in heads.items():
                location = locations.get(shard, head.log_start)
                if location < head.watermark:
                    left[(group, shard)] = (
                        f"{group} is at {location} of {head.watermark} in shard"
                        f" {shard}{self._why(group, shard)}"
                    )
            for parked in ParkedCells(self._engine.state).all(group):
                if parked.retry_asked:
                    left[(group, parked.partition)] = (
                        f"{group}: parked cell {parked.cell_id} is to be tried"
                        f" again{self._why(group, parked.partition)}"
                    )
        return left

    def _locations(self, group: str, is_away: bool) -> dict[int, int]:
        if is_away:
            return last_known(
                self._engine.state, group, self._engine.datastore, range(self._engine.shards)
            )
        return {
            shard: offset.offset
            for (_, shard), offset in self._coordination.observer.fetch_offsets(group).items()
        }

    def _why(self, group: str, shard: int) -> str:
        runs = [run for run in self._history.all() if run.group == group and run.shard == shard]
        if not runs:
            return " (no cell of it has been run)"
        last = runs[-1]
        if last.outcome is RunOutcome.RUNNING:
            return (
                f" ({last.worker} has been running cell {last.cell_ids} for"
                f" {time.monotonic() - last.begun_s:.1f} s)"
            )
        failed = f": {last.error!r}" if last.error is not None else ""
        return (
            f" (the last call was for cell {last.cell_ids} on {last.worker},"
            f" {last.outcome}{failed})"
        )


def release_stalls(
    faults: Sequence[Fault], triggers: Sequence[Trigger], left: set[tuple[str, int]]
) -> None:
    """Lets stalled functions continue where nothing but their shards is left to do."""
    stalls = [fault for fault in faults if isinstance(fault, Stall)]
    with_time_out = {trigger.group for trigger in triggers if trigger.timeout_s is not None}
    stalled = {
        (group, shard)
        for stall in stalls
        for group, shard in list(stall.stalled)
        if group not in with_time_out
    }
    if stalled and left <= stalled:
        for stall in stalls:
            stall.release()
