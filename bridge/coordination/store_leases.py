"""Writes, renews, watches and forgets leases of members in the store's state table.

:mod:`cellfeed.bridge.coordination.watched_leases` judges whether one lives. A lease is written
under its member's entry: of two processes of one name only the later session renews its lease.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from cellfeed.bridge.coordination.contract import Session
from cellfeed.bridge.coordination.store_keys import last_part, lease_key, leases_prefix, member_key
from cellfeed.bridge.coordination.watched_leases import Lease, WatchedLeases
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.contract.values import StateEntry
from cellfeed.store.errors import StaleWriter

_encode = msgspec.json.encode

_FORGOTTEN_AFTER_S: Final = 3600.0
"""How long the lease of a dead member is kept after it ran out. Longer than any pause after which a
process would be expected back."""


class StoreLeases:
    """See the module. ``clock`` is this process's, in seconds, and never steps."""

    def __init__(self, state: StateTable, clock: Callable[[], float]) -> None:
        self._state = state
        self._clock = clock
        self._watched = WatchedLeases()

    def begin(self, session: Session) -> Session:
        """The session, with a lease. Raises StaleWriter when another process has its name."""
        self._forget_the_long_dead(session.group)
        if not self.renew(session):
            raise superseded(session)
        return session

    def renew(self, session: Session) -> bool:
        """Whether its lease was renewed: not where another session of its name has begun."""
        begun_s, ttl_us = self._clock(), int(session.ttl_s * 1e6)
        key = lease_key(session.group, session.member)
        lease = Lease(session.epoch, self._state.now_us() + ttl_us, ttl_us)
        expect = {member_key(session.group, session.member): session.epoch}
        version = self._state.commit({key: _encode(lease)}, expect=expect)
        if version is not None:
            self._watched.wrote(key, version, begun_s)
        return version is not None

    def live_sessions(self, group: str) -> dict[str, int]:
        """Epochs by member."""
        now_s, now_us = self._clock(), self._state.now_us()
        entries = self._state.list(leases_prefix(group))
        alive = {
            last_part(entry.key): lease.epoch
            for entry in entries
            if self._watched.is_alive(entry, lease := _lease(entry), now_s, now_us)
        }
        self._watched.forget_others(leases_prefix(group), {entry.key for entry in entries})
        return alive

    def is_live(self, session: Session) -> bool:
        """Whether the lease of this very session lives."""
        now_s, now_us = self._clock(), self._state.now_us()
        entry = self._state.get(lease_key(session.group, session.member))
        if entry is None:
            return False
        lease = _lease(entry)
        return lease.epoch == session.epoch and self._watched.is_alive(entry, lease, now_s, now_us)

    def _forget_the_long_dead(self, group: str) -> None:
        now_s, now_us = self._clock(), self._state.now_us()
        for entry in self._state.list(leases_prefix(group)):
            lease, membership_key = _lease(entry), member_key(group, last_part(entry.key))
            if lease.expires_at_us < now_us - int(
                _FORGOTTEN_AFTER_S * 1e6
            ) and not self._watched.is_alive(entry, lease, now_s, now_us):
                # A member that is joining again just now has another epoch already, and keeps its
                # entry.
                self._state.commit(
                    {entry.key: None, membership_key: None},
                    expect={entry.key: entry.version, membership_key: lease.epoch},
                )


def superseded(session: Session) -> StaleWriter:
    """The error of a session that another process of its name has ended."""
    return StaleWriter(
        f"another process has joined group {session.group!r} as {session.member!r}: this one's"
        f" session {session.epoch} has ended"
    )


def _lease(entry: StateEntry) -> Lease:
    return msgspec.json.decode(entry.value, type=Lease)
