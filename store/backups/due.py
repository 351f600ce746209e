"""The next step of a schedule of backups, decided from the folder alone: so a process that was
killed, or another one in its place, continues where the folder stands.

The **recovery point** is the newest whole backup of the store's own history: all that was
acknowledged when it began can be restored. It counts as whole by its manifests and the lengths of
its files alone. The next backup is due ``every_s`` after its beginning, and stands on it, unless a
full one is due:

    there is none               the folder is new, or the store was restored, or made again.
    the full one is too old     it began ``full_every_s`` ago, or, by a clock that went back, later
                                than now.
    the chain is too long       ``INCREMENTS_MAX`` increments stand on it.
    the recipients are others   an increment has those of its base.

A damaged backup counts as none: an increment on it could never be restored. Backups of another
history are not built upon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.encryption import Recipients
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.prune import damaged_of
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.errors import NotFound
from cellfeed.store.histories import is_same_history

INCREMENTS_MAX: Final = 2_000
"""Increments on one full backup. A restore needs all of them, and each step of a schedule reads
their manifests: 2,000 of 16 shards are 6 MB."""

SECOND_US: Final = 1_000_000


@dataclass(frozen=True)
class Policy:
    """Seconds from the beginning of a backup to the next one's; from that of a full one to the next
    full one's; the declared time in days, None to keep all; no more than so many cells a second;
    whom they are encrypted to."""

    every_s: float
    full_every_s: float
    keep_days: float | None = None
    cells_per_s: float | None = None
    recipients: Recipients | None = None


@dataclass(frozen=True)
class RecoveryState:
    """``chain``: the recovery point with those that it stands on, the full one first; empty where
    there is none. ``passed_over``: by name the backups of the datastore that are damaged, and
    why."""

    chain: Sequence[Backup]
    passed_over: Mapping[str, str]

    @property
    def recipients(self) -> list[str]:
        return self.chain[0].manifest.recipients

    @property
    def recovery_point(self) -> Backup | None:
        return self.chain[-1] if self.chain else None


class Archived(msgspec.Struct, frozen=True):
    """How far the archive of a cluster's binlog is. All that was acknowledged from ``since_us`` up
    to ``at_us`` is in it, by the master's clock; None before it has begun. ``gap``: why it does not
    go further back; ``error``: why it does not continue. Both are empty where all is well."""

    since_us: int | None = None
    at_us: int | None = None
    gap: str = ""
    error: str = ""


class Report(msgspec.Struct, frozen=True):
    """A schedule's report on itself. ``backup``: the newest whole backup, None where there is none;
    ``begun_at_us``: its beginning, by the store's clock. ``error``: why the last attempt failed,
    empty when it did not; ``passed_over``: damaged backups, with the reasons. ``binlogs``: by
    cluster how far its archive is; empty where none is kept."""

    backup: str | None = None
    begun_at_us: int | None = None
    error: str = ""
    passed_over: dict[str, str] = {}
    binlogs: dict[str, Archived] = {}

    @property
    def recovery_us(self) -> int | None:
        """The moment up to which all can be restored: to which the archives of all clusters have
        come, where none has a gap behind the newest backup; else that backup's beginning."""
        begun_us = self.begun_at_us
        if begun_us is None or not self.binlogs:
            return begun_us
        reached = [
            each.at_us
            for each in self.binlogs.values()
            if each.at_us is not None and each.since_us is not None and each.since_us <= begun_us
        ]
        return max(begun_us, min(reached)) if len(reached) == len(self.binlogs) else begun_us

    def open_gap(self, cluster: str) -> str:
        """Why the archive of a cluster has a gap that no whole backup has closed yet; empty where
        it has none."""
        archived = self.binlogs[cluster]
        if self.begun_at_us is None or archived.since_us is None:
            return archived.gap
        return archived.gap if archived.since_us > self.begun_at_us else ""

    def age_s(self, now_us: int) -> float | None:
        """Seconds since the recovery point; None where there is none."""
        return (
            None if self.recovery_us is None else max(0.0, (now_us - self.recovery_us) / SECOND_US)
        )


def recovery_state_of(folder: BackupFolder, engine: Engine) -> RecoveryState:
    """Where the folder stands for a store."""
    try:
        found, unreadable = folder.look()
    except NotFound:
        return RecoveryState([], {})
    found = [each for each in found if each.manifest.datastore == engine.datastore]
    reasons = damaged_of(found)
    own = [
        each
        for each in found
        if each.manifest.shards == engine.shards
        and is_same_history(each.manifest.history.history_id, engine.history.history_id)
    ]
    whole = [each for each in own if each.name not in reasons]
    reasons |= {
        each.name: each.reason
        for each in unreadable
        if each.finished and each.marker is not None and each.marker.datastore == engine.datastore
    }
    return RecoveryState(folder.chain(whole[-1]) if whole else [], reasons)


def is_full_due(recovery: RecoveryState, policy: Policy, now_us: int) -> bool:
    """Whether the next backup is a full one."""
    if not recovery.chain:
        return True
    age_us = now_us - recovery.chain[0].manifest.created_at_us
    return not 0 <= age_us < policy.full_every_s * SECOND_US or (
        len(recovery.chain) > INCREMENTS_MAX or _recipients_of(policy) != recovery.recipients
    )


def due_in_s(recovery: RecoveryState, policy: Policy, now_us: int) -> float:
    """In how many seconds the next backup is to begin; 0 where it is due. A backup that began later
    than now, by a clock that went back, says nothing: the next one is due."""
    if recovery.recovery_point is None:
        return 0.0
    age_s = (now_us - recovery.recovery_point.manifest.created_at_us) / SECOND_US
    return max(0.0, policy.every_s - age_s) if age_s >= 0 else 0.0


def _recipients_of(policy: Policy) -> list[str]:
    return list(policy.recipients.keys) if policy.recipients is not None else []
