"""A worker's place in a group: its session, kept alive by a thread of its own.

Renewing has a thread to itself. So nothing that the worker waits for costs it its shards: a slow
commit, a long read, a function that takes its time. A thread cannot help against a pause of the
whole process. So a worker asks :meth:`Membership.is_sure` before it runs a cell. That goes by the
local clock; when the lease may have run out, the worker asks the coordinator first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from cellfeed.bridge.coordination.contract import Coordinator, Session
from cellfeed.store.background import SupervisedThread
from cellfeed.store.errors import CellfeedError, StaleWriter
from cellfeed.store.repeated_warnings import RepeatedWarning

_log = logging.getLogger("cellfeed.triggers")

RENEWALS_IN_A_LEASE: Final = 4
"""Renewals are begun so often in the length of a lease: three may fail or be late before it runs
out."""

_LATE_S: Final = 1.0
"""Of a renewal that took longer than that it may be that the coordination was away: a call waits
for it a while."""


class Membership:
    """One group's session. :meth:`renew` belongs to the keeper; the rest may be used by any
    thread."""

    def __init__(
        self,
        coordinator: Coordinator,
        group: str,
        member: str,
        lease_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._lock = threading.Lock()
        self._left = False
        self.superseded: StaleWriter | None = None
        """Set when another process has taken this worker's name: it cannot continue."""
        begun_s = clock()
        self.session: Session = coordinator.join(group, member, lease_s)
        self._sure_until_s = begun_s + self.session.ttl_s
        self._in_touch_since_s: float | None = clock()

    def is_sure(self, epoch: int) -> bool:
        """Whether nobody can have taken over the claims of the session of that epoch."""
        return epoch == self.session.epoch and self._clock() < self._sure_until_s

    def in_touch_s(self) -> float:
        """For how long the session has been renewed in time and without a failure; 0 while it
        cannot be."""
        since_s = self._in_touch_since_s
        return self._clock() - since_s if since_s is not None else 0.0

    def renew(self) -> None:
        """Extends the lease, or joins again when it had run out (the session has another epoch
        then). Raises CellfeedError."""
        with self._lock:
            if self._left or self.superseded:
                return
            begun_s, before = self._clock(), self.session
            try:
                self.session = self._coordinator.renew(before)
            except StaleWriter as error:
                self.superseded = error
                return
            except CellfeedError:
                self._in_touch_since_s = None
                raise
            # Counted from before the call: by the coordinator's clock the lease began later, never
            # earlier.
            self._sure_until_s = begun_s + self.session.ttl_s
            now_s = self._clock()
            if (
                self._in_touch_since_s is None
                or now_s - begun_s > _LATE_S
                or self.session.epoch != before.epoch
            ):
                self._in_touch_since_s = now_s

    def leave(self) -> None:
        """Ends the membership for good."""
        with self._lock:
            self._left = True
            self._coordinator.leave(self.session)


class LeaseKeeper:
    """The thread that renews the sessions of all groups of a worker."""

    def __init__(self, memberships: Sequence[Membership], lease_s: float) -> None:
        self._memberships = memberships
        self._every_s = lease_s / RENEWALS_IN_A_LEASE
        self._stop = threading.Event()
        self._failing = RepeatedWarning(_log)
        self._thread = SupervisedThread("trigger-leases", self._keep)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._stop.wait(self._every_s):
            for membership in self._memberships:
                try:
                    membership.renew()
                except CellfeedError as error:
                    # Work continues: the claims hold until somebody else takes them over, and every
                    # save carries them as its fence.
                    _log.warning(
                        "the lease in group %s could not be renewed just now: %s",
                        membership.session.group,
                        error,
                    )
                except Exception as error:
                    # A defect in one group is none of the others': their leases do not wait for it.
                    self._failing.warn(
                        "the lease in group %s was not renewed by a defect: %r",
                        membership.session.group,
                        error,
                        exc_info=error,
                    )
