"""Whether ZooKeeper is still the one that this datastore's processes wrote to, and has all that
they wrote.

A ZooKeeper can go back in time: somebody restores its data directory, starts a server with an old
disk, or points the configuration at another ensemble. Its versions and transaction numbers then
repeat, and a claim that was taken over long ago is good again. So no number counts here. **Random
values are compared**: they lie both in ZooKeeper and in the state table, which does not go back
with it.

In ZooKeeper:

    /cellfeed/era       {"identity", "first"}: names this stretch of ZooKeeper's history
    /cellfeed/eras/<era>                    empty; each save under a claim of that era checks it
    /cellfeed/witnesses/<era>@<process>     a random mark, which one process alone writes

In the state table:

    coordination/history/era                        {"era", "next", "because"}
    coordination/history/witnesses/<era>/<process>  the marks that ZooKeeper may hold: one, or more
                                                    while a change is under way

A process moves its mark in the transaction of each join and claim, and once more a moment after it
saved offsets (:data:`MARK_EVERY_S`).

**Comparing.** A process compares after each new connection, before it uses that for a claim. It
also compares each time that it is asked for a lineage, several times in a lease. ZooKeeper cannot
go back without ending every connection. Where it lacks a mark that the state table has, it went
back: behind a claim or a join whose call had returned, or behind saves. One that lost nothing but
the saves of its last moment is not noticed: those cells run again.

A new era: :mod:`cellfeed.bridge.coordination.zookeeper.era_steps`.

Crash points. A change: the state table first has the old marks and the new one; then ZooKeeper has
the new one; then the state table has it alone. A death in between leaves two marks, of a change
whose call never returned: either is right.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Sequence
from typing import Any, Final

from kazoo.protocol.states import ZnodeStat

from cellfeed.bridge.coordination.zookeeper.client import (
    Create,
    Operation,
    OtherConnection,
    Set,
    TransactionRefused,
    ZooKeeperClient,
)
from cellfeed.bridge.coordination.zookeeper.era import (
    Era,
    KeptEra,
    keep_era,
    known_era,
)
from cellfeed.bridge.coordination.zookeeper.era_steps import finish_era, read_era, why_broken
from cellfeed.bridge.coordination.zookeeper.paths import Paths
from cellfeed.bridge.coordination.zookeeper.witness import OwnWitness
from cellfeed.bridge.coordination.zookeeper_owner import ChrootOwner
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import Unavailable
from cellfeed.store.failpoints import declare, failpoint

declare(
    "zookeeper.mark_announced",
    "zookeeper.mark_written",
    "zookeeper.era_announced",
)

_log = logging.getLogger("cellfeed.coordination")

MARK_EVERY_S: Final = 1.0
"""How soon after a save the mark moves. Each time is one transaction in ZooKeeper and two commits
of the state table; a process that saves nothing makes none."""

_TRIES_MAX: Final = 50
_CHANGES: Final = (
    "ZooKeeper could not be compared with its recorded history: it changes, or is connected again,"
    " all the time"
)


class ZooKeeperHistory:
    """See the module. May be used by any number of threads."""

    def __init__(
        self, base: ZooKeeperClient, state: StateTable, paths: Paths, owner: ChrootOwner
    ) -> None:
        self._base = base
        self._owner = owner
        self._state = state
        self._paths = paths
        self._lock = threading.Lock()
        self._verified: tuple[int, Era, int] | None = None
        """The connection on which ZooKeeper was compared last, the era found, and the version of
        its entry in the state table."""
        self._witness = OwnWitness(base, state, paths, self.doubt)
        self.because: str | None = None
        """Why the present era was declared; None for the first."""
        self._saves = self._saves_marked = 0

    def era(self) -> Era:
        """The present era; ZooKeeper was compared since it was connected. Raises Unavailable."""
        verified = self._verified
        return (
            verified[1]
            if verified is not None and verified[0] == self._base.connections_made
            else self.check()
        )

    def doubt(self) -> None:
        """The next call compares: something in ZooKeeper was not as this process left it."""
        self._verified = None

    def saved(self) -> None:
        """This process has saved offsets since the mark moved last."""
        self._saves += 1

    def mark_saves(self) -> None:
        """Moves the mark, where there were saves since. Raises CellfeedError; the next call tries
        again."""
        saves = self._saves
        if saves != self._saves_marked:
            self.step(self._base, [])
            self._saves_marked = saves

    def check(self) -> Era:
        """Compares now; declares a new era where ZooKeeper is not the one that the state table
        knows. Raises Unavailable, ProtectData in another datastore's chroot."""
        self._owner.check()
        for _ in range(_TRIES_MAX):
            connection = self._base.connections_made
            known = known_era(self._state)
            if known.kept.next is not None:
                finish_era(self._base, self._state, self._paths, known)
                continue
            found = read_era(self._base, self._paths)
            if known.kept.era is None:
                # A restored or new datastore believes the era that it finds.
                keep_era(
                    self._state,
                    (
                        KeptEra(era=found[0])
                        if found is not None
                        else KeptEra(next=Era(secrets.token_hex(8), first=True))
                    ),
                    known,
                )
                continue
            because = why_broken(self._base, self._paths, known.kept.era, found, known.witnesses)
            if because is None:
                assert known.version is not None  # noqa: S101 (there is an era)
                self._verified, self.because = (
                    (connection, known.kept.era, known.version),
                    known.kept.because,
                )
                return known.kept.era
            # Another process may have changed both since they were read here, one after the other.
            if known_era(self._state) == known:
                because = f"{because} (ZooKeeper at {self._base.hosts})"
                if keep_era(
                    self._state,
                    KeptEra(known.kept.era, Era(secrets.token_hex(8), first=False), because),
                    known,
                ):
                    _log.error(
                        "all groups in this ZooKeeper begin a new era, and those that go by its"
                        " offsets stand still: %s",
                        because,
                    )
                    failpoint("zookeeper.era_announced")
        raise Unavailable(_CHANGES)

    def step(self, client: ZooKeeperClient, operations: Sequence[Operation]) -> list[Any]:
        """Commits a change that ZooKeeper must not lose unseen: once this has returned,
        :meth:`check` notices. Raises TransactionRefused as a commit does."""
        for _ in range(_TRIES_MAX):
            verified = self._compared()
            try:
                with self._lock:
                    return self._step(client, operations, *verified)
            except OtherConnection:
                continue
        raise Unavailable(_CHANGES)

    def commit(self, operations: Sequence[Operation]) -> list[Any]:
        """Commits on a connection on which ZooKeeper was compared. Raises TransactionRefused as a
        commit does."""
        for _ in range(_TRIES_MAX):
            connection, _, _ = self._compared()
            try:
                return self._base.commit(operations, connection=connection)
            except OtherConnection:
                continue
        raise Unavailable(_CHANGES)

    # --- inside -----------------------------------------------------------------------------------

    def _compared(self) -> tuple[int, Era, int]:
        for _ in range(_TRIES_MAX):
            self.era()
            if (verified := self._verified) is not None:
                return verified
        raise Unavailable(_CHANGES)

    def _step(
        self,
        client: ZooKeeperClient,
        operations: Sequence[Operation],
        connection: int,
        era: Era,
        era_version: int,
    ) -> list[Any]:
        witness = self._witness.of_era(era)
        mark = secrets.token_hex(8)
        self._witness.announce(witness, [*witness.marks, mark], era_version)
        failpoint("zookeeper.mark_announced")
        path = self._paths.witness(era.identity, witness.process)
        own: Operation = (
            Create(path, mark.encode())
            if witness.version is None
            else Set(path, mark.encode(), witness.version)
        )
        before, witness.marks, witness.is_sure = witness.marks, [*witness.marks, mark], False
        try:
            results = client.commit(
                [*operations, own], connection=connection if client is self._base else None
            )
        except OtherConnection:
            witness.marks, witness.is_sure = before, True
            raise
        except TransactionRefused as refused:
            if refused.operation != own:
                witness.marks, witness.is_sure = before, True
                raise
            self.doubt()
            raise Unavailable("ZooKeeper changed meanwhile; it is compared again") from None
        failpoint("zookeeper.mark_written")
        witness.version = results[-1].version if isinstance(results[-1], ZnodeStat) else 0
        witness.marks = [mark]
        self._witness.announce(witness, witness.marks, era_version)
        return results[:-1]
