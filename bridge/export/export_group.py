"""One export's share in one process: its place in the group, the units that it has, and the claims
that it gives back.

The group's leader (any of its processes) divides the units. Claims are made shard by shard, as for
triggers: commands that show a group show owners, offsets and lag in the same way. A unit is worked
on only while all its shards are claimed. The fence is the transactional id of the unit
(``unit_run.py``). So while coordination is away, every process keeps exporting its units.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Final

from confluent_kafka import KafkaException

from cellfeed.bridge.coordination.contract import Coordinator, Session
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.limits import TOPIC_LOOK_S
from cellfeed.bridge.export.preparation import Preparation
from cellfeed.bridge.export.taking_over import ExportContext, look_again
from cellfeed.bridge.export.unit_run import UnitRun
from cellfeed.bridge.groups.member import CLAIM_AGAIN_S, GroupMember
from cellfeed.bridge.groups.progress_records import Progress
from cellfeed.bridge.groups.work_threads import WorkThreads
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import CellfeedError, ProtectData, Unavailable

_log: Final = logging.getLogger("cellfeed.export")


class ExportGroup:
    """See the module. Used by the process's main thread. ``heads_wanted`` is set by units that wait
    for new heads of the logs."""

    def __init__(
        self,
        export: Export,
        datastore: Datastore,
        coordinator: Coordinator,
        name: str,
        heads_wanted: threading.Event,
    ) -> None:
        self.export = export
        self._datastore = datastore
        self._coordinator = coordinator
        self._member = GroupMember(
            datastore,
            coordinator,
            export.group,
            name,
            export.lease_s,
            column=export.column or "",
            function=f"→ {export.topic_of(datastore.name)}",
            log=_log,
        )
        self.membership = self._member.membership
        self._runs: dict[int, UnitRun] = {}
        self._threads = WorkThreads(1)
        self._looking: Future[None] | None = None
        self._topic_at_s = 0.0
        self.preparation = Preparation(export, datastore, coordinator, heads_wanted, self._threads)

    @property
    def refusal(self) -> ProtectData | None:
        """Why nothing at all of it can be exported here; None while anything can."""
        refusals = [run.refused for run in self._runs.values()]
        return self.preparation.refused or (refusals[0] if refusals and all(refusals) else None)

    def progress(self) -> dict[int, Progress]:
        """By shard that this process has."""
        return {
            shard: progress
            for run in self._runs.values()
            for shard, progress in run.progress.items()
        }

    def look_failed(self, error: CellfeedError) -> None:
        """Has the reports say why :meth:`keep_place` failed, until it succeeds."""
        self._member.look_failed(error)

    def hear(self, pokes: Collection[bytes]) -> None:
        """Has the next :meth:`keep_place` look soon, if one of these pokes is for this group."""
        self._member.hear(pokes)

    def keep_place(self, heads: Mapping[int, Head]) -> None:
        """Leads if nobody else does, takes and gives back units. Raises StaleWriter when another
        process has this one's name; CellfeedError."""
        now_s = time.monotonic()
        self._collect_ended()
        if self._member.is_paused(now_s):
            for run in self._runs.values():
                run.end()
            self._member.give_back()
            return
        if (context := self.preparation.result(now_s)) is None:
            return
        self._look_at_topic(context, now_s)
        if (session := self._member.due_session(now_s)) is None:
            return
        self._member.begin_look(session, now_s)
        mine = self._member.assigned(session, context.terms.units)
        for unit, run in self._runs.items():
            if unit not in mine or (
                run.offsets.epoch != session.epoch and not self._continues(run, session)
            ):
                run.end()
        self._member.give_back()
        for unit in sorted(mine - set(self._runs)):
            self._begin(context, unit, heads)
        if mine - set(self._runs) or any(run.stop.is_set() for run in self._runs.values()):
            self._member.look_again(CLAIM_AGAIN_S)

    def note_heads(self, changed: Collection[int], look_s: float) -> None:
        """Wakes the units of shards whose heads changed. ``look_s``: the duration of the look."""
        for run in self._runs.values():
            run.note_heads(changed, look_s)

    def report(self, heads: Mapping[int, Head]) -> None:
        """Reports to other processes how far the shards are and why. ``heads``: of all shards.
        Raises Unavailable."""
        if self._member.report_is_due():
            self._member.report(
                self.preparation.waits if self.preparation.context is None else None,
                self.progress(),
                heads,
            )

    def drain(self) -> bool:
        """Asks every unit to end and gives back those that have; True when all are given back and
        the group is left."""
        for run in self._runs.values():
            run.end()
        self._collect_ended()
        if self._runs:
            with suppress(Unavailable):
                self._member.give_back()
            return False
        return self._member.leave(is_idle=True)

    def close(self) -> None:
        self._threads.close()

    # --- inside -----------------------------------------------------------------------------------

    def _look_at_topic(self, context: ExportContext, now_s: float) -> None:
        """Now and then, while there are units at work: partitions may be added and settings changed
        at any time, and nothing that is sent would fail of it."""
        if self._looking is not None and self._looking.done():
            error, self._looking = self._looking.exception(), None
            if error is not None and not isinstance(error, (KafkaException, CellfeedError)):
                # a cluster that does not answer is asked again; its units wait for it anyway
                raise error
        if self._looking is None and self._runs and now_s >= self._topic_at_s:
            self._topic_at_s = now_s + TOPIC_LOOK_S
            self._looking = self._threads.submit(partial(look_again, context))

    def _continues(self, run: UnitRun, session: Session) -> bool:
        """Claims of an ended session may be another process's now. While they are free, the unit
        continues under new claims: taking it over from oneself would cost as much as from another
        process."""
        return not run.stop.is_set() and run.offsets.claim_again(
            partial(self._coordinator.claim, session, self._datastore.name), session.epoch
        )

    def _begin(self, context: ExportContext, unit: int, heads: Mapping[int, Head]) -> None:
        session, shards = self.membership.session, context.terms.shards_of(unit)
        claims = self._coordinator.claim(session, self._datastore.name, shards)
        if len(claims) < len(shards):
            # Its owner is about to give it back, or its lease to run out.
            self._member.will_give_back(claims.values())
            self._member.give_back()
            return
        run = self._runs[unit] = UnitRun(context, unit, claims, session.epoch, heads)
        run.start()

    def _collect_ended(self) -> None:
        for unit, run in list(self._runs.items()):
            if not run.has_ended:
                continue
            del self._runs[unit]
            if run.failed is not None:
                raise run.failed
            # A claim that is void is none any more, and nothing happens to it.
            self._member.will_give_back(run.offsets.claims.values())
            self._member.look_soon(CLAIM_AGAIN_S)
