"""The leader's work in a group: it divides the shards of a trigger, or the units of an export, over
the members that are there.

An absent member has died, or is about to return: after ZooKeeper was away all members return, and
one is the first. So a leader that has just connected to the coordination leaves absent members
their claims for a moment (``assignment.py``); partitions without a claim are given at once. A
member that left in good order has given its claims back. A member that dies while the leader is in
touch is replaced as soon as its session has ended.

A member that never returns is replaced when the moment is over. The leader finds that out at one of
its next looks. If the leader dies before, the next one has a moment of its own, or none. Through
all of it no partition has two owners: claims see to that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from cellfeed.bridge.coordination.assignment import balance, is_awaited
from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.groups.control import OPERATOR
from cellfeed.bridge.groups.membership import RENEWALS_IN_A_LEASE, Membership


class Division:
    """See the module. ``topic``: the claimed one."""

    def __init__(
        self,
        coordinator: Coordinator,
        membership: Membership,
        topic: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._coordinator = coordinator
        self._membership = membership
        self._topic = topic
        self._clock = clock
        self._settled: tuple[object, Mapping[int, str]] | None = None
        """The arguments when nothing was to be changed, and the assignment then."""
        self._epoch = membership.session.epoch
        self._seen_absent: dict[str, tuple[float, float]] = {}
        """In this session: when that was first, and for how long the leader had been in touch
        then."""

    def divide(self, partitions: int, members: Sequence[str]) -> bool:
        """Whether the assignment was changed. ``partitions``: how many are divided: shards, or
        units of some shards each. ``members``: those alive; operators among them get nothing. To be
        called by the leader. Raises StaleWriter when the lead was lost since, Unavailable."""
        session = self._membership.session
        present = [member for member in members if not member.startswith(OPERATOR)]
        current = self._coordinator.assignment(session.group)
        awaited = self._awaited(set(current.values()) - set(present))
        question = partitions, present, awaited
        if self._settled is not None and self._settled == (question, current):
            return False
        wanted = balance(partitions, present, current, awaited)
        if wanted == current:
            self._settled = question, current
            return False
        self._coordinator.assign(session, wanted)
        return True

    def _awaited(self, absent: Collection[str]) -> set[str]:
        session, now_s = self._membership.session, self._clock()
        known = self._seen_absent if session.epoch == self._epoch else {}
        in_touch_s = self._membership.in_touch_s()
        self._epoch, self._seen_absent = (
            session.epoch,
            {member: known.get(member, (now_s, in_touch_s)) for member in absent},
        )
        lease_s, every_s = session.ttl_s, session.ttl_s / RENEWALS_IN_A_LEASE
        awaited = {
            member
            for member, (since_s, touch_s) in self._seen_absent.items()
            if is_awaited(now_s - since_s, touch_s, lease_s, every_s)
        }
        # The owners of claims are read last: of thousands of shards it is a look at each.
        return (
            awaited & set(self._coordinator.owners(session.group, self._topic).values())
            if awaited
            else set()
        )
