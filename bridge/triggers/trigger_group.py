"""One trigger's share in one worker: the place in the group, the runs of the shards that it owns,
and their return.

The group's leader (any of its workers) divides the shards. Each worker gives back shards that are
no longer its own, and claims those that are. It hands the shards that have something to do to a few
threads: one thread at a time per shard, so the order within a shard is the log's. Shards that keep
up with their logs are brought on together, where the trigger can do that, by a thread of their own
(``sweep.py``).

A worker that is killed stops renewing its lease; once that has run out the others claim its shards
and continue from the saved offsets. One that was only paused finds its claims void when it wakes
up, before it runs another cell, and drops them.

While coordination is away, nobody joins, leaves or takes over, and every worker continues with the
shards that it has. A group whose offsets were lost stands still and says why, see
``kept_offsets.py``. So does one that was paused or is being reset, see ``control.py``. So does a
shard whose cells were trimmed before the group reached them. The worker reports on each shard to
other processes, see ``progress_records.py``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Final

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.groups.backoff import Backoff
from cellfeed.bridge.groups.definition import check_definition
from cellfeed.bridge.groups.member import CLAIM_AGAIN_S, GroupMember
from cellfeed.bridge.groups.progress_records import Progress
from cellfeed.bridge.groups.work_threads import WorkThreads
from cellfeed.bridge.triggers.circuit import Circuit
from cellfeed.bridge.triggers.offsets.kept_offsets import (
    changed_lineage,
    choices,
    lost_offsets,
    uses_footholds,
)
from cellfeed.bridge.triggers.parked.cells import ParkedCells, due
from cellfeed.bridge.triggers.process_death.deadlines import Deadlines
from cellfeed.bridge.triggers.program import Trigger
from cellfeed.bridge.triggers.shard.run import ShardRun
from cellfeed.bridge.triggers.shard.sweep import Sweep
from cellfeed.bridge.triggers.shard.take_over import TakeOver
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import CellfeedError, StaleWriter, Trimmed, Unavailable
from cellfeed.store.repeated_warnings import RepeatedWarning

_log = logging.getLogger("cellfeed.triggers")

_CHUNKS_IN_A_TURN: Final = 10
"""Chunks of one shard before other shards that wait for a thread get theirs."""


class TriggerGroup:
    """One trigger's share in this worker. Used by the worker's main thread; the runs it hands out
    are each used by one pool thread at a time."""

    def __init__(
        self,
        trigger: Trigger,
        datastore: Datastore,
        coordinator: Coordinator,
        name: str,
        lease_s: float,
        deadlines: Deadlines | None = None,
    ) -> None:
        self._trigger = trigger
        self._datastore = datastore
        self._coordinator = coordinator
        self._parked = ParkedCells(datastore.state)
        self._member = GroupMember(
            datastore,
            coordinator,
            trigger.group,
            name,
            lease_s,
            column=", ".join((trigger.column, *trigger.more_columns)),
            function=trigger.function_name,
            log=_log,
        )
        self.membership = self._member.membership
        self._runs: dict[int, ShardRun] = {}
        self._to_visit: set[int] = set()
        """See :meth:`start_work`."""
        self._working: dict[int, Future[None]] = {}
        self._sweep = (
            Sweep(trigger, datastore.engine, coordinator) if trigger.together is not None else None
        )
        self.sweeping: Future[None] | None = None
        """The sweep under way."""
        self._claim_again_s = CLAIM_AGAIN_S
        self._compared_in = -1
        """The session in which the group's definition was compared."""
        self._retry_at_s = time.monotonic() + trigger.parked_retry_s
        self._retry_due: dict[int, bool] = {}
        """Shards whose parked cells are to be tried again: all of them, or (False) only those asked
        for by hand."""
        self._stopped_because: str | None = None
        self._circuit = Circuit(trigger.group, trigger.pause_rows)
        self._probed_last = -1
        """The shard that had the last probe of a pause."""
        self._take_over = TakeOver(
            trigger, datastore, coordinator, self._parked, self.membership, deadlines, self._circuit
        )
        self._lost_because: str | None = None
        """Why nobody knows where the work continues, when the group's offsets were lost."""
        self._waiting = RepeatedWarning(_log)
        """Of shards that wait for the store: while a master is away thousands of them may. Each has
        its reason in its progress."""
        self._backoff = Backoff()

    def progress(self) -> dict[int, Progress]:
        """Per shard that this worker owns."""
        return {shard: run.progress for shard, run in self._runs.items()}

    def keep_place(self) -> None:
        """Leads if nobody else does, and takes or gives back shards; does nothing when called more
        often than it needs to be.

        Raises StaleWriter when another process has taken this worker's name, GroupTaken when the
        group has another trigger.
        """
        now_s = time.monotonic()
        if self._member.is_paused(now_s):
            self._stop(self._runs)  # given back as their cells end
            return
        if (session := self._member.due_session(now_s)) is None:
            return
        if session.epoch != self._compared_in:
            self._compare_definition()
            self._compared_in = session.epoch
        self._member.begin_look(session, now_s)
        if self._has_lost_its_offsets():
            return
        mine = self._member.assigned(session, self._datastore.shards)
        # A shard claimed in a session that has ended may be anybody's by now; it is claimed again
        # once the cell under way is done.
        self._stop(
            shard
            for shard, run in self._runs.items()
            if shard not in mine or run.epoch != session.epoch
        )
        self._release_stopped()
        self._member.give_back()
        if missing := sorted(mine - set(self._runs)):
            self._begin(missing)
        in_vain = missing and self._runs.keys().isdisjoint(missing)
        self._claim_again_s = 2 * self._claim_again_s if in_vain else CLAIM_AGAIN_S
        if mine - set(self._runs) or any(run.stop.is_set() for run in self._runs.values()):
            # Twice as long after each try in vain: a poke names the shards that were let go, and to
            # look at the claims of hundreds of shards is work.
            self._member.look_again(self._claim_again_s)
        self._look_at_parked()

    def look_failed(self, error: CellfeedError) -> None:
        """Has the reports say why :meth:`keep_place` failed, until it succeeds."""
        self._member.look_failed(error)

    def hear(self, pokes: Collection[bytes]) -> None:
        """Has the next :meth:`keep_place` look soon, if one of these pokes is for this group."""
        self._member.hear(pokes)

    def tell(self) -> None:
        """Reports to other processes how far the shards are and why; does nothing when called more
        often than it needs to be. Raises Unavailable."""
        if not self._member.report_is_due():
            return
        lost = f"stands still: {self._lost_because}" if self._lost_because is not None else None
        because = lost or self._stopped_because or self._circuit.paused_because
        self._member.report(because, self.progress())

    def hear_heads(self, changed: Mapping[int, Head]) -> None:
        """Has the shards whose heads changed visited by the next :meth:`start_work`."""
        self._to_visit |= changed.keys() & self._runs.keys()

    def start_work(
        self, pool: WorkThreads, sweeper: WorkThreads, heads: Mapping[int, Head]
    ) -> bool:
        """Hands every shard that has something to do to a thread, or to a sweep. Whether any shard
        is being worked on. ``heads``: of all shards, as they were last looked at.

        Only the shards to visit are looked at. The invariant: any other shard is being worked on,
        or is at rest. At rest (:meth:`ShardRun.rests`) it has come to the last known head. It is
        not asked to stop then, and no parked cell of it is due.

        So a shard is to be visited when it is begun, when its head changes, and when its work ends.
        It is also to be visited when it is asked to stop, and when its parked cells are due. It
        stays so until a visit finds it at work or at rest.
        """
        self._collect_finished()
        self._release_stopped()
        with suppress(Unavailable):
            self._member.give_back()
        if self._stopped_because is None and self._circuit.paused_because is not None:
            self._probe(pool, heads)
        elif self._stopped_because is None:
            live: dict[int, ShardRun] = {}
            any_live_has_work = False
            for shard in sorted(self._to_visit):
                run, watermark = self._runs[shard], heads[shard].watermark
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
        return bool(self._working)

    def _probe(self, pool: WorkThreads, heads: Mapping[int, Head]) -> None:
        """While the trigger pauses: hands the next shard that has cells to a thread when a probe is
        due. Shards take turns, so that one whose cell is bad by itself ends no hope."""
        if not self._circuit.probe_is_due:
            return
        waiting = sorted(
            shard
            for shard, run in self._runs.items()
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
        self._working[shard] = pool.submit(partial(self._work, self._runs[shard], None))

    def drain(self) -> bool:
        """Asks every run to end and gives back those that have. True when all are given back and
        the group is left, and when none but runs that only end with the process are left."""
        self._stop(self._runs)
        self._collect_finished()
        try:
            self._release_stopped()
            if self._runs:
                self._member.give_back()
                return all(run.is_overdue for run in self._runs.values())
        except Unavailable:
            if self._working:
                return False
        return self._member.leave(is_idle=not self._working)

    def _compare_definition(self) -> None:
        """Before anything is claimed in a session: a worker that slept through a change of the
        definition is refused here. Raises GroupTaken, Unavailable."""
        definition = self._trigger.definition
        if definition is not None:
            check_definition(self._datastore.state, self._trigger.group, definition)

    def _has_lost_its_offsets(self) -> bool:
        group, state = self._trigger.group, self._datastore.state
        if self._lost_because is None:
            reason = changed_lineage(
                state, self._coordinator, group
            )  # whether every shard has its offset is looked at before shards are taken
        else:
            reason = lost_offsets(state, self._coordinator, group, self._datastore.name)
        self._stand_still(reason)
        return reason is not None

    def _stand_still(self, reason: str | None) -> None:
        if reason is not None:
            if self._lost_because is None:
                _log.error(
                    "trigger %s stands still: %s; %s",
                    self._trigger.group,
                    reason,
                    choices(self._trigger.group),
                )
            self._stop(self._runs)
            self._lost_because = reason
            self._release_stopped()
        elif self._lost_because is not None:
            _log.info("trigger %s resumes", self._trigger.group)
            self._lost_because = None

    def _begin(self, shards: Sequence[int]) -> None:
        """Claims shards and begins on those that could be had, at the offsets as they are under the
        claim."""
        session, topic = self.membership.session, self._datastore.name
        if (
            uses_footholds(self._coordinator)
            and (
                reason := lost_offsets(
                    self._datastore.state,
                    self._coordinator,
                    session.group,
                    topic,
                    shards=set(shards),
                )
            )
            is not None
        ):
            self._stand_still(reason)
            return
        begun = self._take_over.take(session, shards)
        self._runs |= begun
        self._to_visit |= begun.keys()

    def _work(self, run: ShardRun, retry_all: bool | None) -> None:
        if retry_all is not None:
            run.retry_parked(only_asked=not retry_all)
        for _ in range(_CHUNKS_IN_A_TURN):
            more = run.run_chunk()
            if run.stopped_trigger:
                self._stopped_because = self._parked.stopped_because(self._trigger.group)
            if not more or run.stop.is_set() or self._stopped_because is not None:
                return

    def _collect_finished(self) -> None:
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
                self._forget(shard)
            elif isinstance(error, Trimmed):
                self._backoff.failed(shard)
                self._report_trimmed(shard, error)
            elif isinstance(error, CellfeedError):
                self._backoff.failed(shard)
                self._runs[shard].progress.because = f"waiting: {error}"
                self._waiting.warn("shard %d of %s waits: %s", shard, self._trigger.group, error)
            else:
                raise error

    def _report_trimmed(self, shard: int, error: Trimmed) -> None:
        """Cells were trimmed that the group had not come to. Only somebody who knows the group's
        purpose can decide where it continues: nothing is skipped by itself."""
        because = (
            f"stands still: {error}: cellfeed triggers reset {self._trigger.group} --to earliest"
        )
        if self._runs[shard].progress.because != because:
            self._runs[shard].progress.because = because
            _log.error("shard %d of %s %s", shard, self._trigger.group, because)

    def _stop(self, shards: Iterable[int]) -> None:
        for shard in shards:
            self._runs[shard].stop.set()
            self._to_visit.add(shard)

    def _forget(self, shard: int) -> None:
        del self._runs[shard]
        self._to_visit.discard(shard)
        self._backoff.forget(shard)

    def _release_stopped(self) -> None:
        for shard in list(self._to_visit):
            run = self._runs[shard]
            if run.stop.is_set() and shard not in self._working:
                if self._lost_because is not None:
                    run.keep()
                self._forget(shard)
                self._member.will_give_back([run.claim])

    def _look_at_parked(self) -> None:
        reason = self._parked.stopped_because(self._trigger.group)
        if reason is not None and self._stopped_because is None:
            _log.error("trigger %s is stopped: %s", self._trigger.group, reason)
        self._stopped_because = reason
        all_due = time.monotonic() >= self._retry_at_s
        if all_due:
            self._retry_at_s = time.monotonic() + self._trigger.parked_retry_s
        for shard, all_of_it in due(self._parked.all(self._trigger.group), all_due).items():
            if shard in self._runs:
                self._to_visit.add(shard)
                self._retry_due[shard] = all_of_it or self._retry_due.get(shard, False)
