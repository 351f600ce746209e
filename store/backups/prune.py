"""Which backups go, decided by one function for a dry run and for the real one.

Only folders that were recognised are in a decision: by their marker, or, for backups of format 1,
by a manifest that can be read. Of a datastore these go:

    unfinished   it has the marker and no manifest: a backup that was killed.
    expired      a full backup from before the declared time, with all increments that stand on it.
    damaged      it cannot be restored, and is from before the declared time.

A damaged backup counts as none. So nothing that is expired or damaged goes unless a whole backup
stays that is newer than all of it: its chain is complete and every file has its length and SHA-256.
It must be of the same lineage: another store may have the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cellfeed.store.backups.backup import Backup, Unreadable, marker_of
from cellfeed.store.backups.base import lineage_of
from cellfeed.store.backups.folder import BackupFolder, chains_of
from cellfeed.store.backups.marker import Marker, foreign_entries, remove_files
from cellfeed.store.backups.verify import check_files
from cellfeed.store.errors import InvalidRequest, ProtectData, StorageUnavailable
from cellfeed.store.histories import is_same_history

DAY_US: Final = 86_400 * 1_000_000


class Removal(NamedTuple):
    """A backup that goes. ``stays``: the entries of its folder that are no files of a backup."""

    marker: Marker
    why: str
    stays: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.marker.name} ({self.why})" + (
            f", but for {', '.join(self.stays)}, which no backup wrote" if self.stays else ""
        )


@dataclass(frozen=True)
class Decision:
    """``goes``: in the order of removal; ``stays``: whole backups; ``damaged``: by name, with the
    reason, those that stay although they are none."""

    goes: list[Removal] = field(default_factory=list)
    stays: list[Backup] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)


def unfinished(
    folder: BackupFolder, unreadable: Sequence[Unreadable], datastore: str | None = None
) -> list[Removal]:
    """The rests of killed backups, of this datastore or of all; under :meth:`BackupFolder.locked`,
    where none is under way."""
    left = [each.marker for each in unreadable if each.marker is not None and not each.finished]
    return [
        _removal(folder, marker, "not finished")
        for marker in left
        if datastore in (None, marker.datastore)
    ]


def decide(
    folder: BackupFolder,
    keep_days: float,
    now_us: int,
    datastore: str | None = None,
    check: Callable[[list[Backup]], list[str]] = check_files,
) -> Decision:
    """The backups that a prune removes. ``datastore`` may be left out where the folder has backups
    of one alone. Raises InvalidRequest where it has more; ProtectData where no whole newer backup
    would be left. ``check``: returns the faults of the files of a chain."""
    found, unreadable = folder.look()
    named = {each.manifest.datastore for each in found} | {
        each.marker.datastore for each in unreadable if each.marker is not None
    }
    if datastore is None and len(named) > 1:
        raise InvalidRequest(
            f"{folder.place} has backups of datastores {', '.join(sorted(named))}: name one"
            " with --datastore"
        )
    found = [each for each in found if datastore in (None, each.manifest.datastore)]
    broken = {
        each.marker: each.reason
        for each in unreadable
        if each.finished and each.marker is not None and datastore in (None, each.marker.datastore)
    }
    reasons = damaged_of(found)
    broken |= {
        marker_of(backup): reasons[backup.name] for backup in found if backup.name in reasons
    }
    before_us = now_us - int(keep_days * DAY_US)
    whole = [each for each in found if each.name not in reasons]
    expired = [
        each
        for group in chains_of(whole)
        if group[0].manifest.created_at_us < before_us
        for each in group
    ]
    old_damaged = [marker for marker in broken if marker.created_at_us < before_us]
    stays = [each for each in whole if each not in expired]
    lineages = {each.name: lineage_of(each) for each in found}
    last: dict[str, tuple[int, int, str]] = {}
    for order in [
        *(each.manifest.order for each in expired),
        *((each.sequence, each.created_at_us, each.name) for each in old_damaged),
    ]:
        lineage = lineages.get(order[-1], "")
        last[lineage] = max(order, last.get(lineage, order))
    for lineage, order in last.items():
        newer = [
            each
            for each in stays
            if each.manifest.order > order and is_same_history(lineage_of(each), lineage)
        ]
        _refuse_unless_left(folder, newer, keep_days, check, lineage)
    goes = unfinished(folder, unreadable, datastore)
    goes += [_removal(folder, marker, "damaged") for marker in reversed(old_damaged)]
    goes += [_removal(folder, marker_of(each), "expired") for each in reversed(expired)]
    return Decision(
        goes,
        stays,
        {marker.name: reason for marker, reason in broken.items() if marker not in old_damaged},
    )


def remove(folder: BackupFolder, removals: list[Removal]) -> None:
    """Removes the backups that were chosen; under :meth:`BackupFolder.locked`, in which they
    were chosen. Raises StorageUnavailable."""
    for each in removals:
        try:
            remove_files(folder.place, each.marker)
        except OSError as error:
            raise StorageUnavailable(
                f"{folder.place.inside(each.marker.name)} is not removed, or in part:"
                f" {error.strerror}: {error.filename}"
            ) from error


def _removal(folder: BackupFolder, marker: Marker, why: str) -> Removal:
    return Removal(marker, why, tuple(foreign_entries(folder.place.inside(marker.name))))


def damaged_of(found: Sequence[Backup]) -> dict[str, str]:
    """By name why a backup cannot be restored, as far as that shows without reading files: by the
    backups below it, and by lengths."""
    by_name = {each.name: each for each in found}
    reasons: dict[str, str] = {}

    def reason(backup: Backup) -> str:
        if backup.name not in reasons:
            reasons[backup.name] = _below(backup) or _lengths(backup)
        return reasons[backup.name]

    def _below(backup: Backup) -> str:
        manifest = backup.manifest
        if manifest.onto is None:
            return ""
        if (base := by_name.get(manifest.onto)) is None or base.sha256 != manifest.onto_sha256:
            return (
                f"it stands on {manifest.onto}, which"
                f" {'cannot be read, or is missing' if base is None else 'is another one by now'}"
            )
        return reason(base)

    return {each.name: why for each in found if (why := reason(each))}


def _lengths(backup: Backup) -> str:
    for file in backup.manifest.files:
        size = backup.place.size(file.name)
        if size != file.bytes:
            return (
                f"{backup.name}/{file.name}:"
                f" {'it is missing' if size is None else f'{size} bytes'}, {file.bytes} were"
                " written"
            )
    return ""


def _refuse_unless_left(
    folder: BackupFolder,
    newer: list[Backup],
    keep_days: float,
    check: Callable[[list[Backup]], list[str]],
    lineage: str,
) -> None:
    """Raises ProtectData unless one of these is whole."""
    wrong = list[str]()
    for backup in reversed(newer):
        if not (found := check(folder.chain(backup))):
            return
        wrong += found[:1]
    raise ProtectData(
        "nothing removed: no whole backup would be left that is newer than those from before"
        f" {keep_days:g} days, with all that they stand on"
        + (f" ({'; '.join(wrong)})" if wrong else "")
        + (f", of the store whose lineage begins with history {lineage}" if lineage else "")
        + f". Take a full one first: cellfeed backup create {folder.place}; or, where that store is"
        " gone for good, remove its backups by hand"
    )
