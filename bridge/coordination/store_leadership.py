"""The leader of a group and its assignment, in the store's state table."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from cellfeed.bridge.coordination.assignment import ReadAssignments, encode_assignment
from cellfeed.bridge.coordination.contract import Session
from cellfeed.bridge.coordination.owners import Owner, is_live, is_owned_by, owner_of
from cellfeed.bridge.coordination.store_keys import (
    assignment_key,
    leader_key,
    member_key,
)
from cellfeed.bridge.coordination.store_leases import StoreLeases
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import StaleWriter

_encode = msgspec.json.encode


class StoreLeadership:
    """The part of :class:`cellfeed.bridge.coordination.contract.Coordinator` about leaders."""

    def __init__(self, state: StateTable, leases: StoreLeases) -> None:
        self._state = state
        self._leases = leases
        self._assignments = ReadAssignments()

    def lead(self, session: Session) -> bool:
        key = leader_key(session.group)
        entry = self._state.get(key)
        alive = self._leases.live_sessions(session.group)
        if alive.get(session.member) != session.epoch:
            return False
        if entry is not None:
            if is_owned_by(entry.value, session):
                return True
            if is_live(entry.value, alive):
                return False
        # The member's own entry is expected too: a session that another one of its name has ended
        # takes no lead.
        expect = {
            key: entry.version if entry else None,
            member_key(session.group, session.member): session.epoch,
        }
        return (
            self._state.commit({key: _encode(Owner(session.member, session.epoch))}, expect=expect)
            is not None
        )

    def leader(self, group: str) -> str | None:
        entry = self._state.get(leader_key(group))
        return (
            owner_of(entry.value).member
            if entry is not None and is_live(entry.value, self._leases.live_sessions(group))
            else None
        )

    def assign(self, session: Session, assignment: Mapping[int, str]) -> None:
        entry = self._state.get(leader_key(session.group))
        write = {assignment_key(session.group): encode_assignment(assignment)}
        leads = (
            entry is not None
            and is_owned_by(entry.value, session)
            and self._leases.is_live(session)
        )
        # The next leader changes the leader's entry, so an assignment by the old leader
        # fails on its version.
        if (
            entry is None
            or not leads
            or self._state.commit(write, expect={entry.key: entry.version}) is None
        ):
            raise StaleWriter(
                f"{session.member} does not lead group {session.group!r}; its assignment was"
                " refused"
            )

    def assignment(self, group: str) -> Mapping[int, str]:
        entry = self._state.get(assignment_key(group))
        return self._assignments.decoded(group, entry.value) if entry else {}
