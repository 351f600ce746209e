"""Which backups a restore reads, and which part of them it restores: all of one, or a point in
time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from cellfeed.bridge.trimming.trim_history import trims_in
from cellfeed.store.backups.backup import Backup, with_identities
from cellfeed.store.backups.check import read_state
from cellfeed.store.backups.covering import Covered, covering
from cellfeed.store.backups.encryption import Identities
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.manifest import Manifest
from cellfeed.store.backups.point import point_in_time
from cellfeed.store.backups.verify import check_files
from cellfeed.store.cells.cell import microseconds
from cellfeed.store.errors import DataDamaged, InvalidRequest


@dataclass(frozen=True)
class Chosen:
    """``chain``: the backups that have the cells; ``backup``: the one that is restored, or a point
    in time as if it were one; ``state_of``: the backup whose state is restored. ``point``: its
    text, and None for a whole backup. ``trimmed``: see
    :class:`~cellfeed.store.backups.point.Point`."""

    chain: Sequence[Backup]
    backup: Backup
    state_of: Backup
    point: str | None = None
    trimmed: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def manifest(self) -> Manifest:
        return self.backup.manifest


class Choice:
    """``at``: the point in time as it was given; without, the backup of that name, or the newest.
    Raises NotFound, InvalidRequest, DataDamaged."""

    def __init__(
        self, folder: BackupFolder, backup: str | None, at: str | None, datastore: str
    ) -> None:
        self._place = folder.place
        self._at = at
        self._covered: Covered | None = None
        if at is None:
            self.chain: Sequence[Backup] = folder.chain(folder.get(backup, datastore))
        elif backup is not None:
            raise InvalidRequest("--at chooses the backups by itself: leave --backup out")
        else:
            self._covered = covering(folder, datastore, _microseconds(at))
            self.chain = self._covered.chain

    @property
    def manifest(self) -> Manifest:
        """Of the last backup."""
        return self.chain[-1].manifest

    def checked(self, shard: int | None, identities: Identities | None) -> Chosen:
        """With all files read (``shard``: those that this one needs), and the ends of the logs
        found. Raises InvalidRequest where an identity is missing, DataDamaged, ProtectData."""
        self.chain = with_identities(self.chain, identities)
        if wrong := check_files(self.chain, shard):
            more = f" (and {len(wrong) - 1} more: cellfeed backup verify {self._place})"
            raise DataDamaged(f"nothing restored: {wrong[0]}{more if wrong[1:] else ''}")
        if self._covered is None:
            return Chosen(self.chain, self.chain[-1], self.chain[-1])
        covered = self._covered.of(self.chain)
        point = point_in_time(covered, trims_in(read_state(covered.behind)))
        return Chosen(point.chain, point.backup, point.state_of, self._at, point.trimmed)


def _microseconds(text: str) -> int:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f"--at {ascii(text)[:40]} is no moment such as 2026-03-01T12:00:00Z"
        ) from None
    if at.tzinfo is None:
        raise InvalidRequest(f"--at {text} has no time zone: end it with Z for UTC, or with +01:00")
    return microseconds(at)
