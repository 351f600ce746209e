"""Which pieces of archives later backups have made superfluous, decided by one function for a dry
run and for a run.

A piece goes when the last but one whole backup of its history has all that it holds: every id by
the backup's watermarks, and everything else because the backup began later. So one damaged
increment costs nothing. The last piece stays, for the archive continues from it. An archive whose
history a restore has ended goes as a whole once the restored one has two whole backups. Those of a
history that was restored from that one in turn count as well.

So bodies of erased rows leave the archives with the second backup after the erasure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.binlogs.archive import BinlogArchive
from cellfeed.store.backups.binlogs.archives import archives_in
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.prune import damaged_of

BACKUPS_KEPT = 2
"""Whole backups from before which nothing of an archive is needed."""


class Superfluous(NamedTuple):
    """``numbers``: of the pieces that go; ``is_whole``: the archive goes with them."""

    archive: BinlogArchive
    numbers: Sequence[int]
    is_whole: bool

    def __str__(self) -> str:
        of = f"binlogs of cluster {self.archive.marker.cluster} ({self.archive.place.name})"
        if self.is_whole:
            return f"{of}: the archive of an earlier history"
        return f"{of}: {len(self.numbers)} pieces"


def superfluous(folder: BackupFolder, datastore: str | None = None) -> list[Superfluous]:
    """See the module. ``datastore``: whose archives; all when left out. Raises DataDamaged for a
    piece that cannot be read: it stays, and those behind it."""
    archives = archives_in(folder.place, datastore)
    if not archives:
        return []
    found, _ = folder.look()
    reasons = damaged_of(found)
    whole = [each for each in found if each.name not in reasons]
    decided = [_of(archive, whole) for archive in archives]
    return [each for each in decided if each.numbers or each.is_whole]


def remove_superfluous(decided: Sequence[Superfluous]) -> None:
    """Does it, under the lock of the folder. Raises StorageUnavailable."""
    for each in decided:
        if each.is_whole:
            each.archive.remove_all()
        else:
            each.archive.remove_pieces(each.numbers)


def _of(archive: BinlogArchive, whole: Sequence[Backup]) -> Superfluous:
    marker = archive.marker
    of_store = [
        each
        for each in whole
        if (each.manifest.datastore, each.manifest.shards) == (marker.datastore, marker.shards)
    ]
    history_id = marker.history.history_id
    own = [each for each in of_store if each.manifest.history.history_id == history_id]
    last = own[-1].manifest.order if own else (0, 0, "")
    restored = set[str]()
    for each in of_store:  # the oldest first: a store is backed up before its backup is restored
        if each.manifest.history.parent in {history_id, *restored}:
            restored.add(each.manifest.history.history_id)
    later = [
        each
        for each in of_store
        if each.manifest.history.history_id in restored
        and each.manifest.order > last
        and each.manifest.created_at_us > archive.reached().at_us
    ]
    if len(later) >= BACKUPS_KEPT:
        return Superfluous(archive, archive.numbers(), True)
    if len(own) < BACKUPS_KEPT:
        return Superfluous(archive, [], False)
    base = own[-BACKUPS_KEPT].manifest
    watermarks = {log.shard: log.watermark for log in base.logs}
    goes = []
    for number in archive.numbers()[:-1]:
        head = archive.read(number).head
        if head.ended_us >= base.created_at_us or any(
            end > watermarks[shard] for shard, end in head.ends.items()
        ):
            break
        goes.append(number)
    return Superfluous(archive, goes, False)
