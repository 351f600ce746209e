"""The runs of the shards that one worker owns for a trigger: which of them have something to do,
and the threads that get them.

One thread at a time works on a shard, so the order within a shard is the log's. Shards that keep up
with their logs run together, where the trigger can do that, on a thread of their own
(``sweep.py``).

A look costs nothing for a shard at rest. The invariant: a shard that is not **to visit** is being
worked on, or is at rest. At rest (:meth:`ShardRun.rests`) it has come to the last known head,
nobody asked it to stop, and no parked cell of it is due. So a shard is to be visited when it is
begun, when its head changes, and when its work ends. It is also to be visited when it is asked to
stop, and when its parked cells are due. It stays so until a visit finds it at work or at rest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Final

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.groups.backoff import Backoff
from cellfeed.bridge.groups.work_threads import WorkThreads
from cellfeed.bridge.triggers.circuit import Circuit
from cellfeed.bridge.triggers.parked.cell import due
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.triggers.program import Trigger
from cellfeed.bridge.triggers.shard.run import ShardRun
from cellfeed.bridge.triggers.shard.sweep import Sweep
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import CellfeedError, StaleWriter, Trimmed
from cellfeed.store.repeated_warnings import RepeatedWarning

_log = logging.getLogger("cellfeed.triggers")

_CHUNKS_IN_A_TURN: Final = 10
"""Chunks of one shard before other shards that wait for a thread get theirs."""


class Schedule:
    """Of one trigger in one worker. Used by the worker's main thread; each run by one pool thread
    at a time."""

    def __init__(
        self,
        trigger: Trigger,
        engine: Engine,
        coordinator: Coordinator,
        parked: ParkedCells,
        circuit: Circuit,
    ) -> None:
        self._trigger = trigger
        self._parked = parked
        self._circuit = circuit
        self.runs: dict[int, ShardRun] = {}
        """By shard; for reading alone."""
        self._to_visit: set[int] = set()
        self._working: dict[int, Future[None]] = {}
        self._sweep = Sweep(trigger, engine, coordinator) if trigger.together is not None else None
        self.sweeping: Future[None] | None = None
        """The sweep under way."""
        self._retry_at_s = time.monotonic() + trigger.parked_retry_s
        self._retry_due: dict[int, bool] = {}
        """Shards whose parked cells are to be tried again: all of them, or (False) only those asked
        for by hand."""
        self._stopped_because: str | None = None
        """Why the trigger stopped: too many parked cells."""
        self._probed_last = -1
        """The shard that had the last probe of a pause."""
        self._waiting = RepeatedWarning(_log)
        """Of shards that wait for the store: while a master is away thousands of them may. Each has
        its reason in its progress."""
        self._backoff = Backoff()

    @property
    def is_working(self) -> bool:
        """Whether a thread has any of its shards."""
        return bool(self._working)

    @property
    def paused_because(self) -> str | None:
        """Why no shard is worked on, or only probed; None while all are."""
        return self._stopped_because or self._circuit.paused_because

    def add(self, begun: Mapping[int, ShardRun]) -> None:
        """Shards that this worker has just claimed."""
        self.runs |= begun
        self._to_visit |= begun.keys()

    def visit(self, shards: Collection[int]) -> None:
        """Visits those of the shards that are here: their heads changed."""
        self._to_visit |= self.runs.keys() & shards

    def stop(self, shards: Iterable[int]) -> None:
        """Asks runs to end after the cell that is under way."""
        for shard in shards:
            self.runs[shard].stop.set()
            self._to_visit.add(shard)

    def remove_stopped(self, *, keep: bool) -> Iterator[ShardRun]:
        """Removes the runs that were asked to stop and are not being worked on, one by one, and
        yields them. ``keep``: each first writes its location to the datastore. Raises
        Unavailable."""
        for shard in list(self._to_visit):
            run = self.runs[shard]
            if run.stop.is_set() and shard not in self._working:
                if keep:
                    run.keep()
                self._remove(shard)
                yield run

    def look_at_parked(self) -> None:
        """Reads whether the trigger is stopped, and which shards have parked cells to try again.
        Raises Unavailable."""
        reason = self._parked.stopped_because(self._trigger.group)
        if reason is not None and self._stopped_because is None:
            _log.error("trigger %s is stopped: %s", self._trigger.group, reason)
        self._stopped_because = reason
        all_due = time.monotonic() >= self._retry_at_s
        if all_due:
            self._retry_at_s = time.monotonic() + self._trigger.parked_retry_s
        for shard, all_of_it in due(self._parked.all(self._trigger.group), all_due).items():
            if shard in self.runs:
                self._to_visit.add(shard)
                self._retry_due[shard] = all_of_it or self._retry_due.get(shard, False)

    def hand_out(self, pool: WorkThreads, sweeper: WorkThreads, heads: Mapping[int, Head]) -> None:
        """Hands every shard that has something to do to a thread, or to a sweep. ``heads``: of all
        shards, as they were last looked at."""
        if self._stopped_because is not None:
            return
        if self._circuit.paused_because is not None:
            self._probe(pool, heads)
            return
        live: dict[int, ShardRun] = {}
        any_live_has_work = False
        for shard in sorted(self._to_visit):
            run, watermark = self.runs[shard], heads[shard].watermark
            has_work = run.has_work(watermark)
            if shard in self._working:
                self._to_visit.discard(shard)
                continue
            if run.stop.is_set() or self._backoff.has_to_wait(shard):
                continue
            if run.rests(watermark) and shard not in self._retry_due:
                self._to_visit.discard(shard)
                continue
            if self._sweep is not None and run.is_live and shard not in self._retry_due:
                live[shard] = run
                any_live_has_work |= has_work
            elif has_work or shard in self._retry_due:
                self._working[shard] = pool.submit(
                    partial(self._work, run, self._retry_due.pop(shard, None))
                )
        if any_live_has_work and self._sweep is not None and self.sweeping is None:
            self.sweeping = sweeper.submit(partial(self._sweep.run, list(live.values())))
            self._working |= dict.fromkeys(live, self.sweeping)

    def _probe(self, pool: WorkThreads, heads: Mapping[int, Head]) -> None:
        """While the trigger pauses: hands the next shard that has cells to a thread when a probe is
        due. Shards take turns, so that one whose cell is bad by itself ends no hope."""
        if not self._circuit.probe_is_due:
            return
        waiting = sorted(
            shard
            for shard, run in self.runs.items()
            if run.has_work(heads[shard].watermark) and not run.stop.is_set()
        )
        if not waiting and not self._working:
            self._circuit.nothing_waits()
        free = [
            shard
            for shard in waiting
            if shard not in self._working and not self._backoff.has_to_wait(shard)
        ]
        if not free:
            return
        shard = next((each for each in free if each > self._probed_last), free[0])
        self._probed_last = shard
        self._working[shard] = pool.submit(partial(self._work, self.runs[shard], None))

    def _work(self, run: ShardRun, retry_all: bool | None) -> None:
        if retry_all is not None:
            run.retry_parked(only_asked=not retry_all)
        for _ in range(_CHUNKS_IN_A_TURN):
            more = run.run_chunk()
            if run.stopped_trigger:
                self._stopped_because = self._parked.stopped_because(self._trigger.group)
            if not more or run.stop.is_set() or self._stopped_because is not None:
                return

    def collect_finished(self) -> None:
        """Takes shards back from the threads that are done with them, and notes why they wait.
        Raises any defect of theirs."""
        if self.sweeping is not None and self.sweeping.done():
            self.sweeping = None
        for shard, future in list(self._working.items()):
            if not future.done():
                continue
            del self._working[shard]
            self._to_visit.add(shard)
            error = future.exception()
            if error is None:
                self._backoff.forget(shard)
            elif isinstance(error, StaleWriter):
                _log.warning(
                    "shard %d of %s was taken over by another worker", shard, self._trigger.group
                )
                self._remove(shard)
            elif isinstance(error, Trimmed):
                self._backoff.failed(shard)
                self._report_trimmed(shard, error)
            elif isinstance(error, CellfeedError):
                self._backoff.failed(shard)
                self.runs[shard].progress.because = f"waiting: {error}"
                self._waiting.warn("shard %d of %s waits: %s", shard, self._trigger.group, error)
            else:
                raise error

    def _report_trimmed(self, shard: int, error: Trimmed) -> None:
        """Cells were trimmed that the group had not come to. Only somebody who knows the group's
        purpose can decide where it continues: nothing is skipped by itself."""
        because = (
            f"stands still: {error}: cellfeed triggers reset {self._trigger.group} --to earliest"
        )
        if self.runs[shard].progress.because != because:
            self.runs[shard].progress.because = because
            _log.error("shard %d of %s %s", shard, self._trigger.group, because)

    def _remove(self, shard: int) -> None:
        del self.runs[shard]
        self._to_visit.discard(shard)
        self._backoff.forget(shard)
