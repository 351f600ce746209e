"""One trigger's share in one worker: the place in the group, the shards that it owns, and their
return.

The group's leader (any of its workers) divides the shards. Each worker gives back shards that are
no longer its own, and claims those that are. ``schedule.py`` hands them to threads.

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
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.groups.definition import check_definition
from cellfeed.bridge.groups.member import CLAIM_AGAIN_S, GroupMember
from cellfeed.bridge.groups.progress_records import Progress
from cellfeed.bridge.groups.work_threads import WorkThreads
from cellfeed.bridge.triggers.circuit import Circuit
from cellfeed.bridge.triggers.offsets.kept_offsets import needs_kept_offsets
from cellfeed.bridge.triggers.offsets.lineage import changed_lineage, choices, lost_offsets
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.triggers.process_death.deadlines import Deadlines
from cellfeed.bridge.triggers.program import Trigger
from cellfeed.bridge.triggers.schedule import Schedule
from cellfeed.bridge.triggers.shard.take_over import TakeOver
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import CellfeedError, Unavailable

_log = logging.getLogger("cellfeed.triggers")


class TriggerGroup:
    """One trigger's share in this worker. Used by the worker's main thread."""

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
        parked = ParkedCells(datastore.state)
        circuit = Circuit(trigger.group, trigger.pause_rows)
        self._schedule = Schedule(trigger, datastore.engine, coordinator, parked, circuit)
        self._take_over = TakeOver(
            trigger, datastore, coordinator, parked, self.membership, deadlines, circuit
        )
        self._claim_again_s = CLAIM_AGAIN_S
        self._compared_in = -1
        """The session in which the group's definition was compared."""
        self._lost_because: str | None = None
        """Why nobody knows where the work continues, when the group's offsets were lost."""

    @property
    def sweeping(self) -> Future[None] | None:
        """The sweep under way."""
        return self._schedule.sweeping

    def progress(self) -> dict[int, Progress]:
        """Per shard that this worker owns."""
        return {shard: run.progress for shard, run in self._schedule.runs.items()}

    def keep_place(self) -> None:
        """Leads if nobody else does, and takes or gives back shards; does nothing when called more
        often than it needs to be.

        Raises StaleWriter when another process has taken this worker's name, GroupTaken when the
        group has another trigger.
        """
        now_s = time.monotonic()
        if self._member.is_paused(now_s):
            self._schedule.stop(self._schedule.runs)  # given back as their cells end
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
        self._schedule.stop(
            shard
            for shard, run in self._schedule.runs.items()
            if shard not in mine or run.epoch != session.epoch
        )
        self._release_stopped()
        self._member.give_back()
        runs = self._schedule.runs
        if missing := sorted(mine - set(runs)):
            self._begin(missing)
        in_vain = missing and runs.keys().isdisjoint(missing)
        self._claim_again_s = 2 * self._claim_again_s if in_vain else CLAIM_AGAIN_S
        if mine - set(runs) or any(run.stop.is_set() for run in runs.values()):
            # Twice as long after each try in vain: a poke names the shards that were let go, and to
            # look at the claims of hundreds of shards is work.
            self._member.look_again(self._claim_again_s)
        self._schedule.look_at_parked()

    def look_failed(self, error: CellfeedError) -> None:
        """Has the reports say why :meth:`keep_place` failed, until it succeeds."""
        self._member.look_failed(error)

    def hear(self, pokes: Collection[bytes]) -> None:
        """Has the next :meth:`keep_place` look soon, if one of these pokes is for this group."""
        self._member.hear(pokes)

    def report(self, heads: Mapping[int, Head]) -> None:
        """Reports to other processes how far the shards are and why; does nothing when called more
        often than it needs to be. ``heads``: of all shards. Raises Unavailable."""
        if not self._member.report_is_due():
            return
        lost = f"stands still: {self._lost_because}" if self._lost_because is not None else None
        self._member.report(lost or self._schedule.paused_because, self.progress(), heads)

    def hear_heads(self, changed: Mapping[int, Head]) -> None:
        """Has the shards whose heads changed visited by the next :meth:`start_work`."""
        self._schedule.visit(changed.keys())

    def start_work(
        self, pool: WorkThreads, sweeper: WorkThreads, heads: Mapping[int, Head]
    ) -> bool:
        """Hands every shard that has something to do to a thread, or to a sweep. Whether any shard
        is being worked on. ``heads``: of all shards, as they were last looked at."""
        self._schedule.collect_finished()
        self._release_stopped()
        with suppress(Unavailable):
            self._member.give_back()
        self._schedule.hand_out(pool, sweeper, heads)
        return self._schedule.is_working

    def drain(self) -> bool:
        """Asks every run to end and gives back those that have. True when all are given back and
        the group is left, and when none but runs that only end with the process are left."""
        self._schedule.stop(self._schedule.runs)
        self._schedule.collect_finished()
        try:
            self._release_stopped()
            if runs := self._schedule.runs:
                self._member.give_back()
                return all(run.is_overdue for run in runs.values())
        except Unavailable:
            if self._schedule.is_working:
                return False
        return self._member.leave(is_idle=not self._schedule.is_working)

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
            self._schedule.stop(self._schedule.runs)
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
            needs_kept_offsets(self._coordinator)
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
        self._schedule.add(self._take_over.take(session, shards))

    def _release_stopped(self) -> None:
        for run in self._schedule.remove_stopped(keep=self._lost_because is not None):
            self._member.will_give_back([run.claim])
