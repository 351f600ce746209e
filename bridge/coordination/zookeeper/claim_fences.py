"""Fences of saves in ZooKeeper: the claims as they were given out, and the era of that.

A commit checks the versions and the random identities of its claims, and the era that they were
given out in. So a claim that was taken over moves nothing, whenever the request arrives, and also
where ZooKeeper went back in time since (``zookeeper/history.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

from cellfeed.bridge.coordination.contract import Claim
from cellfeed.bridge.coordination.zookeeper.client import (
    Check,
    ZooKeeperClient,
)
from cellfeed.bridge.coordination.zookeeper.history import ZooKeeperHistory
from cellfeed.bridge.coordination.zookeeper.paths import (
    Paths,
    birth_of,
    version_of,
)
from cellfeed.store.errors import (
    StaleWriter,
    Unavailable,
)


class ClaimFences:
    """Of one datastore's claims."""

    def __init__(self, paths: Paths, history: ZooKeeperHistory) -> None:
        self._paths = paths
        self._history = history

    def check_eras(self, group: str, claims: Sequence[Claim]) -> None:
        """Compares ZooKeeper with the state table if it was connected again since, and refuses
        claims of an era that has ended."""
        era = self._history.era() if claims else None
        if era is not None and any(_era_of(claim) != era.identity for claim in claims):
            raise self.stale(group, claims)

    def of(self, claims: Sequence[Claim]) -> list[Check]:
        """The checks that a transaction under these claims needs."""
        fences = [
            Check(self._paths.fence_of_era(era), 0) for era in {_era_of(claim) for claim in claims}
        ]
        for claim in claims:
            path = self._paths.claim(
                claim.group, claim.topic, claim.partition, birth_of(claim.token)
            )
            fences += [Check(path, version_of(claim.token)), Check(self._paths.identity(claim), 0)]
        return fences

    def stale(self, group: str, claims: Sequence[Claim]) -> StaleWriter:
        """The error of a save under these claims, one or more of them void."""
        lost = ", ".join(f"{claim.topic}/{claim.partition}" for claim in claims)
        return StaleWriter(
            f"the offsets of group {group!r} were not saved: a claim on one of {lost} has been"
            " taken over"
        )


def lineage_of(group: str, base: ZooKeeperClient, paths: Paths, history: ZooKeeperHistory) -> str:
    """As :meth:`cellfeed.bridge.coordination.contract.Offsets.lineage`."""
    era = history.check()
    path = paths.offsets(group)
    stat = base.stats([path], newest=True)[0]
    if stat is None:
        base.ensure(path)
        stat = base.stats([path])[0]
        if stat is None:
            raise Unavailable(f"ZooKeeper: {path} was deleted the moment it was made")
    # A group's folder may be as it was in a ZooKeeper that went back; its era is not. Earlier
    # versions knew no era: the first one has no name here.
    return f"zookeeper {stat.ctime:x}-{stat.czxid:x}" + (
        "" if era.first else f" era {era.identity}"
    )


def _era_of(claim: Claim) -> str:
    return claim.identity.partition("-")[0]
