"""Which groups this gateway coordinates: slots of groups, claimed in the coordination, each under a
fence.

Groups hash to :data:`cellfeed.bridge.gateway.groups.spread.SLOTS` slots. Every gateway is a member
of one group of the coordination and works out by itself which gateway should have which slot
(:func:`cellfeed.bridge.gateway.groups.spread.spread`). It gives back slots that should be another's
and claims those that should be its own. A claim can be had when it was given back or when its
holder's session has ended. So at any moment at most one gateway holds a slot. Every save carries
the claim (C4, C5): a gateway that was paused and has lost a slot moves no offset when it wakes up
(I20).

Generations never go back across a move: :mod:`cellfeed.bridge.gateway.groups.generations`.

**A coordination that went back in time**, or returned empty, has older offsets of consumer groups.
So gateways refuse all requests of groups, but for heartbeats, until an operator accepts these
offsets (``cellfeed offsets accept``). Claims of before are void then. Generations are in the state
table, and never go back.

Crash points: after the claim, before the reservation: the next claim of the session, or of another
one, reserves. After the reservation: some numbers are never used. After giving back, before
leaving: the slots are free, as intended. A step that fails may leave claims of slots that should be
another's: the next one gives them back. A renewal that lands late keeps a session whose slots were
taken over meanwhile: the gateway compares its slots with the coordination's behind each one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from cellfeed.bridge.coordination.contract import Claim, Coordinator, Session
from cellfeed.bridge.gateway.groups.active_notes import active_groups
from cellfeed.bridge.gateway.groups.generations import ReservedGenerations
from cellfeed.bridge.gateway.groups.slot_owners import (
    GROUP,
    TOPIC,
    give_back_strays,
    own_slots,
    why_stopped,
)
from cellfeed.bridge.gateway.groups.spread import SLOTS, spread
from cellfeed.bridge.gateway.limits import GENERATIONS_RESERVED
from cellfeed.bridge.gateway.nodes import Node, all_nodes
from cellfeed.bridge.groups.definition import defined_groups
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import StaleWriter, Unavailable
from cellfeed.store.failpoints import declare, failpoint

declare("gateway.slots_claimed", "gateway.slots_reserved")


class ClaimedSlot(NamedTuple):
    """A slot of this gateway. Generations above ``first`` and below ``end`` are its own; ``first``
    distinguishes tenures. ``epoch``: of the session. ``active``: groups that had members when the
    slot was taken over, and their longest session time-out in seconds."""

    claim: Claim
    first: int
    end: int
    epoch: int
    active: Mapping[str, float]


class Look(NamedTuple):
    """The result of one step. ``nodes``: the living ones, by name. ``triggers``: groups that are
    triggers, which no consumer may join."""

    nodes: Mapping[str, Node]
    slots: Mapping[int, ClaimedSlot]
    triggers: frozenset[str]


class SlotClaims:
    """Blocking, used by one thread at a time. ``clock`` is this process's, in seconds."""

    def __init__(
        self,
        coordinator: Coordinator,
        state: StateTable,
        name: str,
        node: Node,
        ttl_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._coordinator = coordinator
        self._state = state
        self._name = name
        self._node = node
        self._ttl_s = ttl_s
        self._clock = clock
        self._generations = ReservedGenerations(coordinator, state)
        self._session: Session | None = None
        self._renew_at_s = 0.0
        self._slots: dict[int, ClaimedSlot] = {}
        self._is_unsure = False
        """Whether the coordination may have other slots as this gateway's than ``_slots``."""
        self.confirmed_until_s = 0.0
        """By ``clock``: until then nobody can have taken a slot over."""

    def step(self, generations: Mapping[int, int]) -> Look:
        """Renews the session when it is time, looks who is there, gives back and claims.
        ``generations``: the highest in use, by slot.

        Raises StaleWriter when another process has joined under this gateway's name, Unavailable
        when the coordination or the store is away.
        """
        if (reason := why_stopped(self._state, self._coordinator)) is not None:
            self.confirmed_until_s = self._renew_at_s = 0.0
            raise Unavailable(reason)
        session = self._renew()
        known = all_nodes(self._state)
        nodes = {name: known[name] for name in self._coordinator.members(GROUP) if name in known}
        # The own entry is as this process wrote it; it counts even where the coordination does
        # not show it yet.
        nodes[self._name] = self._node
        owners = spread("slot", SLOTS, sorted(node.node_id for node in nodes.values()))
        mine = {slot for slot, owner in enumerate(owners) if owner == self._node.node_id}
        is_unsure, self._is_unsure = self._is_unsure, True
        self._give_back([slot for slot in self._slots if slot not in mine])
        if is_unsure:
            own = own_slots(self._coordinator, self._name)
            self._slots = {slot: each for slot, each in self._slots.items() if slot in own}
            give_back_strays(self._coordinator, session, own - mine)
        wanted = [
            slot
            for slot in mine
            if slot not in self._slots or not self._is_of_this_session(self._slots[slot])
        ]
        self._take(wanted)
        self._reserve_more(generations)
        self._is_unsure = False
        return Look(nodes, dict(self._slots), defined_groups(self._state))

    def step_without_coordination(self) -> dict[int, ClaimedSlot]:
        """The remaining slots when :meth:`step` failed: those that nobody has coordinated
        meanwhile, by the state table. Raises Unavailable."""
        self._is_unsure = True
        if self._slots:
            ends = self._generations.ends()
            self._slots = {
                slot: claimed
                for slot, claimed in self._slots.items()
                if ends.get(slot) == claimed.end
            }
        return dict(self._slots)

    def leave(self) -> None:
        """Gives everything back, so that others need not wait for the session's end."""
        if self._session is None:
            return
        session, self._session = self._session, None
        self._give_back(list(self._slots))
        self._coordinator.leave(session)

    # --- inside -----------------------------------------------------------------------------------

    def _renew(self) -> Session:
        now_s, session = self._clock(), self._session
        if session is None:
            session = self._coordinator.join(GROUP, self._name, self._ttl_s)
        elif now_s < self._renew_at_s:
            return session
        else:
            session = self._coordinator.renew(session)
        # Counted from before the call: the coordination's own count began later.
        self._session = session
        self.confirmed_until_s = now_s + session.ttl_s
        self._renew_at_s = now_s + session.ttl_s / 3
        self._is_unsure = True
        return session

    def _is_of_this_session(self, claimed: ClaimedSlot) -> bool:
        return self._session is not None and claimed.epoch == self._session.epoch

    def _give_back(self, slots: list[int]) -> None:
        given_back = [self._slots.pop(slot).claim for slot in slots]
        if given_back:
            self._coordinator.release(given_back)

    def _take(self, slots: list[int]) -> None:
        if not slots or self._session is None:
            return
        claims = self._coordinator.claim(self._session, TOPIC, slots)
        failpoint("gateway.slots_claimed")
        # A slot of an earlier session that another gateway has by now.
        for slot in set(slots) - set(claims):
            self._slots.pop(slot, None)
        if not claims:
            return
        ends = self._generations.ends()
        kept = {
            slot
            for slot in claims
            if slot in self._slots and self._slots[slot].end == ends.get(slot)
        }
        for slot in kept:
            self._slots[slot] = self._slots[slot]._replace(
                claim=claims[slot], epoch=self._session.epoch
            )
        fresh = {slot: claim for slot, claim in claims.items() if slot not in kept}
        for slot in fresh:
            self._slots.pop(slot, None)
        self._reserve_above(fresh, ends)
        failpoint("gateway.slots_reserved")
        active = active_groups(self._state) if fresh else {}
        for slot, claim in fresh.items():
            first = ends.get(slot, 0)
            self._slots[slot] = ClaimedSlot(
                claim,
                first,
                first + GENERATIONS_RESERVED,
                self._session.epoch,
                active.get(slot, {}),
            )

    def _reserve_more(self, generations: Mapping[int, int]) -> None:
        short = {
            slot: claimed
            for slot, claimed in self._slots.items()
            if claimed.end - generations.get(slot, claimed.first) < GENERATIONS_RESERVED // 2
        }
        if not short:
            return
        self._reserve_above(
            {slot: claimed.claim for slot, claimed in short.items()},
            {slot: claimed.end for slot, claimed in short.items()},
        )
        for slot, claimed in short.items():
            self._slots[slot] = claimed._replace(end=claimed.end + GENERATIONS_RESERVED)

    def _reserve_above(self, claims: Mapping[int, Claim], ends: Mapping[int, int]) -> None:
        try:
            self._generations.reserve(claims, ends)
        except StaleWriter as lost:
            self._renew_at_s = 0.0
            raise Unavailable(f"slots were lost the moment they were claimed: {lost}") from None
