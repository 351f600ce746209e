"""The backups around a point in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.prune import damaged_of
from cellfeed.store.cells.cell import moment
from cellfeed.store.errors import InvalidRequest, NotFound


@dataclass(frozen=True)
class Covered:
    """The backups that a point lies between; both are one where it began at that very moment.
    ``chain``: their backups, in the order in which a restore reads them."""

    at_us: int
    before: Backup
    behind: Backup
    chain: Sequence[Backup]

    def of(self, chain: Sequence[Backup]) -> Covered:
        """The same, of backups that were decrypted."""
        by_name = {each.name: each for each in chain}
        return Covered(
            self.at_us, by_name[self.before.name], by_name[self.behind.name], list(chain)
        )

    @property
    def fresh(self) -> list[Backup]:
        """Those of ``behind``'s chain that ``before`` does not consist of."""
        own = [each.name for each in self.chain]
        return list(self.chain[own.index(self.before.name) + 1 :])


def covering(folder: BackupFolder, datastore: str, at_us: int) -> Covered:
    """The backups around a point. Where those of several histories are, the one that was backed up
    last counts. Raises NotFound without any backup, InvalidRequest for a point that none covers."""
    found, _ = folder.look()
    reasons = damaged_of(found)
    histories: dict[tuple[str, int], list[Backup]] = {}
    for each in found:
        if each.manifest.datastore == datastore and each.name not in reasons:
            manifest = each.manifest
            histories.setdefault((manifest.history.history_id, manifest.shards), []).append(each)
    if not histories:
        raise NotFound(f"{folder.place} holds no whole backup of datastore {datastore!r}")
    newest_first = sorted(
        histories.values(), key=lambda each: each[-1].manifest.order, reverse=True
    )
    for backups in newest_first:
        if (pair := _around(backups, at_us)) is not None:
            before, behind = pair
            chain = folder.chain(before)
            names = {each.name for each in chain}
            chain += [each for each in folder.chain(behind) if each.name not in names]
            return Covered(at_us, before, behind, chain)
    ranges = "; ".join(
        f"{_at(each[0])} ({each[0].name}) to {_at(each[-1])} ({each[-1].name})"
        for each in newest_first
    )
    raise InvalidRequest(
        f"nothing restored: {moment(at_us).isoformat()} is not covered by the backups of"
        f" {datastore!r} in {folder.place}: from the oldest to the newest of a history they cover"
        f" {ranges}"
    )


def _around(backups: Sequence[Backup], at_us: int) -> tuple[Backup, Backup] | None:
    """The last backup before a point, and the first one behind it; None where one is missing. A
    backup that began later than a following one, by a clock that was ahead, is not taken as the one
    behind: it may lack cells up to the point."""
    begun = [each.manifest.created_at_us for each in backups]
    for number in reversed(range(len(backups))):
        logs = backups[number].manifest.logs
        if begun[number] <= at_us and all(log.last_created_at_us <= at_us for log in logs):
            found = (
                each
                for each in range(number, len(backups))
                if at_us <= begun[each] <= min(begun[each:])
            )
            behind = next(found, None)
            return None if behind is None else (backups[number], backups[behind])
    return None


def _at(backup: Backup) -> str:
    return moment(backup.manifest.created_at_us).isoformat()
