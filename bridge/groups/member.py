"""One process's place in a group of triggers, of exports or of indexes: its looks at the
assignment, pauses by operators, returned claims, and reports.

The work on an assigned shard or unit is not here: it is the group's own
(``triggers/trigger_group.py``, ``export/export_group.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Set
from contextlib import suppress
from typing import Final

from cellfeed.bridge.coordination.contract import Claim, Coordinator, Session
from cellfeed.bridge.groups.control import Control, Pause, notify_workers, poke_of
from cellfeed.bridge.groups.division import Division
from cellfeed.bridge.groups.follower_watch import FollowerWatch
from cellfeed.bridge.groups.membership import Membership
from cellfeed.bridge.groups.progress_records import Progress
from cellfeed.bridge.groups.progress_reporter import ProgressReporter
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import CellfeedError, StaleWriter, Unavailable

LOOKS_IN_A_LEASE: Final = 4
"""The assignment is looked at so often in the length of a lease."""

LOOK_SOON_S: Final = 0.05
"""Shortest time between two looks that pokes ask for: while shards change hands there are
many."""

CONTROL_LOOK_S: Final = 1.0
"""How often operators' requests are looked at when no poke comes."""

CLAIM_AGAIN_S: Final = 0.2
"""How soon shards whose holders are about to let go of them are tried again."""


class GroupMember:
    """See the module. Used by the process's main thread. ``cellfeed status`` shows ``column`` and
    ``function`` of the group."""

    def __init__(
        self,
        datastore: Datastore,
        coordinator: Coordinator,
        group: str,
        name: str,
        lease_s: float,
        *,
        column: str,
        function: str,
        log: logging.Logger,
    ) -> None:
        self.group = group
        self._state = datastore.state
        self._coordinator = coordinator
        self._log = log
        self.membership = Membership(coordinator, group, name, lease_s)
        self._division = Division(coordinator, self.membership, datastore.name)
        self._control = Control(datastore.state, group)
        self._poke = poke_of(group)
        self._reporter = ProgressReporter(datastore.state, group, name, column, function)
        self._follower = FollowerWatch(group)
        self._pause: Pause | None = None
        self._control_at_s = 0.0
        self._look_at_s = 0.0
        self._looked_at_s = float("-inf")
        self._epoch = -1
        self._announced = False
        self._takes_nothing = ""
        self._to_give_back: list[Claim] = []
        self._share: tuple[Mapping[int, str], Set[int]] | None = None
        """The assignment that was last read, and this member's part of it."""

    # --- looking ----------------------------------------------------------------------------------

    def hear(self, pokes: Collection[bytes]) -> None:
        """Makes the next look come soon, if one of these pokes is for this group."""
        if self._poke in pokes:
            self._control_at_s = 0.0
            self.look_soon(LOOK_SOON_S)

    def look_soon(self, after_s: float) -> None:
        """Makes the next look come so many seconds after the last one, or when it would come
        anyway."""
        self._look_at_s = min(self._look_at_s, self._looked_at_s + after_s)

    def look_again(self, in_s: float) -> None:
        """Makes the next look come so many seconds after this one, a part of the lease at most."""
        part_s = self.membership.session.ttl_s / LOOKS_IN_A_LEASE
        self._look_at_s = self._looked_at_s + min(in_s, part_s)

    def is_paused(self, now_s: float) -> bool:
        """Whether operators have the group wait. Raises Unavailable; StaleWriter when another
        process has taken this one's name."""
        if self.membership.superseded is not None:
            raise self.membership.superseded
        if now_s >= self._control_at_s:
            self._control_at_s = now_s + CONTROL_LOOK_S
            pause = self._control.current_pause(self._coordinator)
            if pause is not None and self._pause is None:
                self._log.info("%s waits: %s", self.group, pause)
            elif pause is None and self._pause is not None:
                self._log.info("%s resumes", self.group)
                self._look_at_s = 0.0
            self._pause = pause
        return self._pause is not None

    def due_session(self, now_s: float) -> Session | None:
        """The session, when it is time to look at the assignment; None before."""
        session = self.membership.session
        return session if now_s >= self._look_at_s or session.epoch != self._epoch else None

    def look_failed(self, error: CellfeedError) -> None:
        """Has the reports say why nothing is taken or given back, until another look begins."""
        self._takes_nothing = str(error)

    def begin_look(self, session: Session, now_s: float) -> None:
        """Notes that the look of this session has begun: the next one is a part of a lease away."""
        self._takes_nothing = ""
        self._epoch, self._looked_at_s = session.epoch, now_s
        self._look_at_s = now_s + session.ttl_s / LOOKS_IN_A_LEASE

    def assigned(self, session: Session, partitions: int) -> Set[int]:
        """The partitions assigned to this member, of ``partitions`` shards or units. A member that
        leads divides them first. Raises Unavailable."""
        if self._coordinator.lead(session):
            self._divide(partitions)
        elif not self._announced:
            notify_workers(self._state, self.group)
        self._announced = True
        assignment = self._coordinator.assignment(session.group)
        if self._share is None or self._share[0] is not assignment:
            mine = {each for each, member in assignment.items() if member == session.member}
            self._share = assignment, mine & set(range(partitions))
        return self._share[1]

    def _divide(self, partitions: int) -> None:
        members = self._coordinator.members(self.group)
        try:
            if self._division.divide(partitions, members):
                notify_workers(self._state, self.group)
        except StaleWriter as error:  # the lead was lost since: the new leader divides
            self._log.info("another worker leads %s now: %s", self.group, error)
        self._reporter.forget_the_long_dead(members)

    # --- giving back ------------------------------------------------------------------------------

    def will_give_back(self, claims: Iterable[Claim]) -> None:
        """Keeps claims until they are given back. A claim that outlived an error would keep its
        shard from everybody as long as this process lives."""
        self._to_give_back += claims

    def give_back(self) -> None:
        """Releases those claims. Raises Unavailable."""
        if self._to_give_back:
            self._coordinator.release(self._to_give_back)
            self._to_give_back.clear()
            notify_workers(self._state, self.group)

    # --- reporting and leaving --------------------------------------------------------------------

    def report_is_due(self) -> bool:
        """Whether :meth:`report` would write anything new."""
        return self._reporter.is_due()

    def report(
        self, because: str | None, progress: Mapping[int, Progress], heads: Mapping[int, Head]
    ) -> None:
        """Reports how far the shards are. ``because``: why all of it waits, unless operators have
        it wait. Raises Unavailable."""
        if self._reporter.is_due():
            if self._pause is not None:
                self._follower.pause()
            else:
                self._follower.look(because, progress, heads)
            paused = str(self._pause) if self._pause is not None else None
            self._reporter.report(paused or because, progress, self._takes_nothing)

    def leave(self, is_idle: bool) -> bool:
        """Gives back the remaining claims and ends the membership. False, to be called again, when
        coordination is away and not ``is_idle``: work is still under way."""
        try:
            self.give_back()
            self.membership.leave()
        except Unavailable as error:
            if not is_idle:
                return False
            self._log.warning(
                "%s is left without a word: its shards are free once the session has ended: %s",
                self.group,
                error,
            )
        self._follower.close()
        with suppress(Unavailable):
            self._reporter.leave()
        notify_workers(self._state, self.group)
        return True
