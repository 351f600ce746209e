"""A folder of backups: one folder for each, in the order of a sequence; which are whole, which are
not, and which backups one stands on.

    DIR/lock                            held by the process that makes or removes backups here
    DIR/erasures, erasures.copy         see :mod:`cellfeed.store.backups.register`
    DIR/20260301T120000Z-3f9a/          a backup
        cellfeed-backup                 written first: see :mod:`cellfeed.store.backups.marker`
        cells-0000, cells-0001, …       pieces of logs: see :mod:`cellfeed.store.backups.block_file`
        dictionaries                    one exported dictionary a line
        state                           the entries of the state table that belong to a backup
        manifest.json                   written last: see :mod:`cellfeed.store.backups.manifest`

All other things in DIR belong to somebody else: files, folders of other names, links, and folders
without a valid marker or manifest. Nothing here reads, follows or removes them. Backups are ordered
by their sequence, one more than the highest of the folder. The time in the name is for people. DIR
lies on a disk or in an object store (:mod:`cellfeed.store.backups.places`).

Crash points: a backup is there when its manifest is, which is one rename; everything else was
synced before. The rest of a killed one has a marker and no manifest; it counts for nothing, and the
next backup of the same datastore removes it (:mod:`cellfeed.store.backups.prune`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from cellfeed.store.backups.backup import Backup, Unreadable
from cellfeed.store.backups.manifest import decode_manifest, digest_of_manifest
from cellfeed.store.backups.marker import MANIFEST, is_backup_name, read_marker
from cellfeed.store.backups.places.contract import Place
from cellfeed.store.backups.places.local import LocalPlace
from cellfeed.store.errors import (
    CellfeedError,
    DataDamaged,
    InvalidRequest,
    NotFound,
    StorageUnavailable,
)


class BackupFolder:
    """See the module. Raises StorageUnavailable where the disk fails."""

    def __init__(self, place: Path | Place) -> None:
        self.place = LocalPlace(place) if isinstance(place, Path) else place

    @property
    def path(self) -> Path:
        """The folder of one that lies on this machine."""
        return Path(str(self.place))

    def look(self) -> tuple[list[Backup], list[Unreadable]]:
        """Every backup, the oldest first, and every folder that looks like one and is none."""
        try:
            names = [each.name for each in self.place.entries() if is_backup_name(each.name)]
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(
                f"{self.place} is no folder of backups: `cellfeed backup create {self.place}`"
                " makes one"
            ) from None
        except OSError as error:
            raise StorageUnavailable(f"{self.place}: {error.strerror}") from error
        found, unreadable = list[Backup](), list[Unreadable]()
        for place in map(self.place.inside, names):
            if not place.is_folder():
                continue
            try:
                found.append(self._read(place))
            except NotFound:
                marker = read_marker(place)
                reason = (
                    "not finished: it has no manifest; the next backup removes it"
                    if marker
                    else _NOT_RECOGNISED
                )
                unreadable.append(Unreadable(place.name, reason, marker, finished=False))
            except StorageUnavailable:
                raise
            except CellfeedError as error:
                unreadable.append(
                    Unreadable(place.name, str(error), read_marker(place), finished=True)
                )
        return sorted(found, key=lambda each: each.manifest.order), unreadable

    def get(self, name: str | None, datastore: str | None = None) -> Backup:
        """The backup of that name; without, the newest, of that datastore where one is given.
        Raises NotFound, DataDamaged, ProtectData."""
        if name is not None:
            if Path(name).name != name:
                raise InvalidRequest(
                    f"{name!r} is not the name of a backup: `cellfeed backup list {self.place}`"
                    " shows them"
                )
            return self._read(self.place.inside(name))
        backups, unreadable = self.look()
        found = [each for each in backups if datastore in (None, each.manifest.datastore)]
        for each in unreadable:
            of_it = each.finished and (
                each.marker is None or datastore in (None, each.marker.datastore)
            )
            if of_it and (
                not found
                or each.marker is None
                or each.marker.sequence > found[-1].manifest.sequence
            ):
                raise DataDamaged(
                    f"{each.reason}. Which backup is the newest is not known: name the one that"
                    " is meant"
                )
        if not found:
            of = f" of datastore {datastore!r}" if backups else ""
            raise NotFound(f"{self.place} holds no backup{of}")
        return found[-1]

    def chain(self, backup: Backup) -> list[Backup]:
        """The full backup that this one stands on, every increment up to it, in order. Raises
        DataDamaged when one of them is missing or another one."""
        chain = [backup]
        while (below := chain[0].manifest.onto) is not None:
            try:
                before = self._read(self.place.inside(below))
            except NotFound:
                raise DataDamaged(
                    f"backup {chain[0].name} stands on {below}, which is not in {self.place}:"
                    " without it the cells from before are missing"
                ) from None
            if before.sha256 != chain[0].manifest.onto_sha256:
                raise DataDamaged(
                    f"backup {chain[0].name} stands on another {below} than the one in {self.place}"
                )
            chain.insert(0, before)
        return chain

    def later(
        self, backup: Backup, then: str = ", and restore with --readers-ahead raise-epoch"
    ) -> list[Backup]:
        """The backups of the same datastore that were taken after this one, in order. ``then``: how
        to continue once an unreadable one was moved out of the folder. Raises DataDamaged while one
        that may be among them cannot be read: its erasures and readers would be passed over."""
        found, unreadable = self.look()
        manifest = backup.manifest
        if hidden := [each for each in unreadable if each.may_follow(manifest)]:
            raise DataDamaged(
                f"nothing restored: {hidden[0].name}, which may be a later backup than"
                f" {backup.name}, cannot be read ({hidden[0].reason}), so nobody knows which ids"
                " and erasures it has. Bring it back from a copy; or move it out of the folder"
                f"{then}"
            )
        same = (manifest.datastore, manifest.shards)
        return [
            each
            for each in found
            if (each.manifest.datastore, each.manifest.shards) == same
            and each.manifest.order > manifest.order
        ]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Held by the process that makes or removes backups here. Raises InvalidRequest when
        another one does."""
        with ExitStack() as locks:
            try:
                locks.enter_context(self.place.locked())
            except OSError as error:
                raise StorageUnavailable(f"{error.filename}: {error.strerror}") from error
            yield

    def _read(self, place: Place) -> Backup:
        try:
            if not is_backup_name(place.name) or not place.is_folder():
                raise FileNotFoundError(place)
            content = place.read(MANIFEST)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(
                f"{self.place} has no backup {place.name!r}; `cellfeed backup list {self.place}`"
                " shows those that are there"
            ) from None
        except OSError as error:
            raise DataDamaged(f"{place}/{MANIFEST}: {error.strerror}") from error
        manifest = decode_manifest(content, place.name)
        if manifest.name != place.name:
            raise DataDamaged(
                f"{place}: the manifest is that of backup {manifest.name}: the folder must keep its"
                " name"
            )
        return Backup(place, manifest, digest_of_manifest(content))


def next_sequence(found: Sequence[Backup], unreadable: Sequence[Unreadable]) -> int:
    """One more than the highest of a folder, of every datastore, damaged backups too."""
    taken = [each.manifest.sequence for each in found] + [
        each.marker.sequence for each in unreadable if each.marker is not None
    ]
    return max(taken, default=0) + 1


def chains_of(backups: Sequence[Backup]) -> list[list[Backup]]:
    """Each full backup with all increments that stand on it, the oldest first."""
    full_of: dict[str, str] = {}
    groups: dict[str, list[Backup]] = {}
    for backup in backups:
        below = backup.manifest.onto
        full = backup.name if below is None else full_of.get(below, below)
        full_of[backup.name] = full
        groups.setdefault(full, []).append(backup)
    return list(groups.values())


_NOT_RECOGNISED: Final = (
    "not recognised: it has neither a manifest nor the marker of a backup, so it stays; remove it"
    " by hand if it is nobody's"
)
