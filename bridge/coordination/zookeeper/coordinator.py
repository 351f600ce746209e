"""Coordination in ZooKeeper: lead and claims are compare-and-set on versions. Members see
``zookeeper/sessions.py``, offsets ``zookeeper/offsets.py``.

**Fencing.** A claim's znode is never deleted. Every claim and release sets it under its version, so
the version is a token that only rises; ``commit_offsets`` checks it in its transaction, with the
claim's random identity and its era. Epochs are versions of one znode per group. Both carry the
group's birth, so those from before a wipe fit nothing. Each join and each claim leaves a mark in
the state table too, so a ZooKeeper that lost it again is noticed, see ``zookeeper/history.py``: it
begins a new era, with new births.

Crash points: every change is one transaction. A lost answer leaves a lead or claim that the same
session finds to be its own when it asks again.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Final

import msgspec
from kazoo.protocol.states import ZnodeStat

from cellfeed.bridge.coordination.assignment import ReadAssignments, encode_assignment
from cellfeed.bridge.coordination.contract import Claim, Session
from cellfeed.bridge.coordination.owners import Owner, is_live, is_owned_by, owner_of
from cellfeed.bridge.coordination.zookeeper.client import (
    Check,
    Create,
    Delete,
    Operation,
    Set,
    TransactionRefused,
)
from cellfeed.bridge.coordination.zookeeper.paths import birth_of, joined, version_of
from cellfeed.bridge.coordination.zookeeper.sessions import ZooKeeperSessions
from cellfeed.store.errors import StaleWriter

_encode = msgspec.json.encode

_CLAIMS_IN_A_TRANSACTION: Final = 500
"""Some 500 bytes each: well below the megabyte that ZooKeeper takes in one request
(``jute.maxbuffer``)."""


class ZooKeeperCoordinator(ZooKeeperSessions):
    """:class:`cellfeed.bridge.coordination.contract.Coordinator` over ZooKeeper. ``clock`` is this
    process's, in seconds, and measures leases only against itself."""

    @cached_property
    def _assignments(self) -> ReadAssignments:
        return ReadAssignments()

    # --- lead and assignment ----------------------------------------------------------------------

    def lead(self, session: Session) -> bool:
        self._leases.end_lapsed()
        birth = birth_of(session.epoch)
        alive = self._alive(session.group, birth)
        if alive.get(session.member) != session.epoch or birth != self._births.birth(session.group):
            return False
        found = self._base.get(self._paths.leader(session.group, birth))
        if found is None or is_live(found[0], alive):
            return found is not None and is_owned_by(found[0], session)
        # The member's znode is expected too: a session that has ended meanwhile takes no lead.
        take = Set(
            self._paths.leader(session.group, birth),
            _encode(Owner(session.member, session.epoch)),
            found[1].version,
        )
        try:
            self._history.commit([self._is_alive(session), take])
        except TransactionRefused:
            return False
        return True

    def leader(self, group: str) -> str | None:
        self._leases.end_lapsed()
        birth = self._births.birth(group)
        found = self._base.get(self._paths.leader(group, birth)) if birth is not None else None
        if birth is None or found is None or not is_live(found[0], self._alive(group, birth)):
            return None
        return owner_of(found[0]).member

    def assign(self, session: Session, assignment: Mapping[int, str]) -> None:
        self._leases.end_lapsed()
        birth = birth_of(session.epoch)
        leader_path = self._paths.leader(session.group, birth)
        leader = (
            self._base.get(leader_path, newest=True)
            if birth == self._births.birth(session.group)
            else None
        )
        if leader is not None and is_owned_by(leader[0], session):
            write = Set(self._paths.assignment(session.group, birth), encode_assignment(assignment))
            try:
                # The next leader sets the leader's znode, so an assignment by the old
                # leader fails on its version.
                self._history.commit(
                    [Check(leader_path, leader[1].version), self._is_alive(session), write]
                )
            except TransactionRefused:
                pass
            else:
                return
        raise StaleWriter(
            f"{session.member} does not lead group {session.group!r}; its assignment was refused"
        )

    def assignment(self, group: str) -> Mapping[int, str]:
        birth = self._births.birth(group)
        found = self._base.get(self._paths.assignment(group, birth)) if birth is not None else None
        return self._assignments.decoded(group, found[0]) if found is not None else {}

    # --- claims -----------------------------------------------------------------------------------

    def claim(self, session: Session, topic: str, partitions: Collection[int]) -> dict[int, Claim]:
        self._leases.end_lapsed()
        birth = birth_of(session.epoch)
        if birth != self._births.birth(session.group):
            return {}
        # Entries that an earlier owner left on their way are in the state table before anybody else
        # works on the partition.
        self.entries.finish(session.group, birth)
        wanted, got = sorted(partitions), {}
        for start in range(0, len(wanted), _CLAIMS_IN_A_TRANSACTION):
            got.update(
                self._claim(session, topic, wanted[start : start + _CLAIMS_IN_A_TRANSACTION])
            )
        if got:
            self.entries.finish(
                session.group, birth
            )  # entries that were on their way while the claims changed hands
        return got

    def release(self, claims: Collection[Claim]) -> None:
        given_back = [
            Set(
                self._paths.claim(claim.group, claim.topic, claim.partition, birth_of(claim.token)),
                b"",
                version_of(claim.token),
            )
            for claim in claims
        ]
        for start in range(0, len(given_back), _CLAIMS_IN_A_TRANSACTION):
            self._release(given_back[start : start + _CLAIMS_IN_A_TRANSACTION])

    def owners(
        self, group: str, topic: str, partitions: Collection[int] | None = None
    ) -> dict[int, str]:
        birth = self._births.birth(group)
        if birth is None:
            return {}
        if partitions is None:
            partitions = sorted(
                int(name)
                for name in self._base.children(
                    self._paths.claims(group, birth, topic), newest=True
                )
            )
        found = self._base.get_many(
            [self._paths.claim(group, topic, partition, birth) for partition in partitions]
        )
        return {
            partition: owner_of(each[0]).member
            for partition, each in zip(partitions, found, strict=True)
            if each is not None and each[0]
        }

    # --- inside -----------------------------------------------------------------------------------

    def _claim(self, session: Session, topic: str, partitions: list[int]) -> dict[int, Claim]:
        birth = birth_of(session.epoch)
        alive = self._alive(session.group, birth)
        if alive.get(session.member) != session.epoch:
            return {}
        era = self._history.era()
        identity = f"{era.identity}-{secrets.token_hex(8)}"
        owner = _encode(Owner(session.member, session.epoch))
        paths = {
            partition: self._paths.claim(session.group, topic, partition, birth)
            for partition in partitions
        }
        found = dict(
            zip(partitions, self._base.get_many(list(paths.values()), newest=True), strict=True)
        )
        if None in found.values():
            self._base.ensure(self._paths.claims(session.group, birth, topic))
        old = dict(zip(partitions, self._base.children_of(list(paths.values())), strict=True))
        taken: dict[int, Operation] = {}
        identities: list[Operation] = []
        for partition, each in found.items():
            if each is None:
                taken[partition] = Create(paths[partition], owner)
            elif not is_live(each[0], alive) or is_owned_by(each[0], session):
                taken[partition] = Set(paths[partition], owner, each[1].version)
            else:
                continue
            identities += [Delete(f"{paths[partition]}/{name}") for name in old[partition]]
            identities.append(Create(f"{paths[partition]}/{identity}"))
        if not taken:
            return {}
        try:
            results = self._history.step(
                self._base, [self._is_alive(session), *taken.values(), *identities]
            )[1 : len(taken) + 1]
        except TransactionRefused:
            if len(partitions) == 1:
                return {}
            # Somebody took one of them between the look and the commit: the others are still to be
            # had.
            half = len(partitions) // 2
            return self._claim(session, topic, partitions[:half]) | self._claim(
                session, topic, partitions[half:]
            )
        tokens = [
            joined(birth, result.version if isinstance(result, ZnodeStat) else 0)
            for result in results
        ]
        return {
            partition: Claim(session.group, topic, partition, session.member, token, identity)
            for partition, token in zip(taken, tokens, strict=True)
        }

    def _release(self, given_back: list[Set]) -> None:
        if not given_back:
            return
        try:
            self._base.commit(given_back)
        except TransactionRefused:
            if len(given_back) > 1:  # one of them is void; that keeps no other
                half = len(given_back) // 2
                self._release(given_back[:half])
                self._release(given_back[half:])
