"""Claims of partitions in the store's state table: each is an entry whose version is its token.

Thousands of partitions are several commits. A commit that fails because somebody took or lost one
of its claims is split in halves, so that one claim keeps no other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from cellfeed.bridge.coordination.contract import Claim, Session
from cellfeed.bridge.coordination.owners import Owner, is_live, is_owned_by, owner_of
from cellfeed.bridge.coordination.store_keys import claim_key, claims_prefix, last_part, member_key
from cellfeed.bridge.coordination.store_leases import StoreLeases
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.contract.values import StateEntry

_encode = msgspec.json.encode

_CLAIMS_IN_A_COMMIT: Final = 1_000
"""A commit of so many takes some 20 ms, for which every renewal of a lease in the store waits."""


class StoreClaims:
    """See the module; the calls are those of
    :class:`cellfeed.bridge.coordination.contract.Coordinator`."""

    def __init__(self, state: StateTable, leases: StoreLeases) -> None:
        self._state = state
        self._leases = leases

    def claim(self, session: Session, topic: str, partitions: Collection[int]) -> dict[int, Claim]:
        entries, wanted = self._claims(session.group, topic), sorted(partitions)
        return {
            partition: claim
            for first in range(0, len(wanted), _CLAIMS_IN_A_COMMIT)
            for partition, claim in self._claim(
                session, topic, wanted[first : first + _CLAIMS_IN_A_COMMIT], entries
            ).items()
        }

    def _claim(
        self,
        session: Session,
        topic: str,
        partitions: Sequence[int],
        entries: Mapping[int, StateEntry],
    ) -> dict[int, Claim]:
        alive = self._leases.live_sessions(session.group)
        if not partitions or alive.get(session.member) != session.epoch:
            return {}
        expect: dict[str, int | None] = {member_key(session.group, session.member): session.epoch}
        free = []
        for partition in partitions:
            entry = entries.get(partition)
            if (
                entry is None
                or is_owned_by(entry.value, session)
                or not is_live(entry.value, alive)
            ):
                free.append(partition)
                expect[claim_key(session.group, topic, partition)] = (
                    entry.version if entry else None
                )
        if not free:
            return {}
        owner = _encode(Owner(session.member, session.epoch))
        token = self._state.commit(
            {claim_key(session.group, topic, partition): owner for partition in free},
            expect=expect,
        )
        if token is not None:
            return {
                partition: Claim(session.group, topic, partition, session.member, token)
                for partition in free
            }
        if len(free) == 1:
            return {}
        # Somebody took one of them between the look and the commit: the others are still to be had.
        entries, half = self._claims(session.group, topic), len(free) // 2
        return self._claim(session, topic, free[:half], entries) | self._claim(
            session, topic, free[half:], entries
        )

    def _claims(self, group: str, topic: str) -> dict[int, StateEntry]:
        return {
            int(last_part(entry.key)): entry
            for entry in self._state.list(claims_prefix(group, topic))
        }

    def release(self, claims: Collection[Claim]) -> None:
        given_back = list(claims)
        for first in range(0, len(given_back), _CLAIMS_IN_A_COMMIT):
            self._release(given_back[first : first + _CLAIMS_IN_A_COMMIT])

    def _release(self, claims: Sequence[Claim]) -> None:
        keys = {
            claim_key(claim.group, claim.topic, claim.partition): claim.token for claim in claims
        }
        if keys and self._state.commit(dict.fromkeys(keys), expect=keys) is None and len(keys) > 1:
            half = len(claims) // 2  # one of them is void; that keeps no other
            self._release(claims[:half])
            self._release(claims[half:])

    def owners(
        self, group: str, topic: str, partitions: Collection[int] | None = None
    ) -> dict[int, str]:
        owners = {
            partition: owner_of(entry.value).member
            for partition, entry in self._claims(group, topic).items()
        }
        return (
            owners
            if partitions is None
            else {partition: owners[partition] for partition in partitions if partition in owners}
        )
