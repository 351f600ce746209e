"""A folder of backups: one folder for each, named by the moment that it was begun; what is whole, what is left of one that was not finished, what may go.

    DIR/lock                            held by whoever makes or removes backups here
    DIR/20260301T120000Z-3f9a/          a backup
        manifest.json                   written last: see :mod:`store.backups.manifest`
        cells-0000, cells-0001, …       pieces of logs: see :mod:`store.backups.block_file`
        dictionaries                    one exported dictionary a line
        state                           the entries of the state table that belong to a backup

Crash points: a backup is there when its manifest is, which is one rename; everything else was synced before. What a killed one has left has no manifest, counts
for nothing and is removed by the next one. Removing a backup begins with its manifest.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from store.backups.manifest import Manifest, decode_manifest, digest_of_manifest
from store.errors import CellfeedError, DataDamaged, InvalidRequest, NotFound, ProtectData, StorageUnavailable

MANIFEST: Final = "manifest.json"
STATE: Final = "state"
DICTIONARIES: Final = "dictionaries"

DAY_US: Final = 86_400 * 1_000_000


@dataclass(frozen=True)
class Backup:
    """One that is there. ``sha256``: of its manifest file."""

    path: Path
    manifest: Manifest
    sha256: str

    @property
    def name(self) -> str:
        return self.manifest.name


@dataclass(frozen=True)
class Unreadable:
    """A folder that is no whole backup, and why."""

    name: str
    reason: str


class BackupFolder:
    """See the module. Raises StorageUnavailable where the disk fails."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def look(self) -> tuple[list[Backup], list[Unreadable]]:
        """Every backup, the oldest first, and what is none."""
        if not self.path.is_dir():
            raise NotFound(f"{self.path} is no folder of backups: `cellfeed backup create {self.path}` makes one")
        found, unreadable = list[Backup](), list[Unreadable]()
        for place in sorted(each for each in self.path.iterdir() if each.is_dir()):
            try:
                found.append(self._read(place))
            except NotFound:
                unreadable.append(Unreadable(place.name, "not finished: it has no manifest; the next backup removes it"))
            except CellfeedError as error:
                unreadable.append(Unreadable(place.name, str(error)))
        return sorted(found, key=lambda each: (each.manifest.created_at_us, each.name)), unreadable

    def get(self, name: str | None) -> Backup:
        """The backup of that name; the newest without. Raises NotFound, DataDamaged, ProtectData."""
        if name is not None:
            if Path(name).name != name:
                raise InvalidRequest(f"{name!r} is not the name of a backup: `cellfeed backup list {self.path}` shows them")
            return self._read(self.path / name)
        found, unreadable = self.look()
        if damaged := [each for each in unreadable if (self.path / each.name / MANIFEST).exists()]:
            raise DataDamaged(f"{damaged[0].name}: {damaged[0].reason}. Which backup is the newest cannot be told: name the one that is meant")
        if not found:
            raise NotFound(f"{self.path} holds no backup")
        return found[-1]

    def chain(self, backup: Backup) -> list[Backup]:
        """The full backup that this one stands on, every increment up to it, in order. Raises DataDamaged when one of them is missing or another one."""
        chain = [backup]
        while (below := chain[0].manifest.onto) is not None:
            try:
                before = self._read(self.path / below)
            except NotFound:
                raise DataDamaged(
                    f"backup {chain[0].name} stands on {below}, which is not in {self.path}: without it the cells from before are missing"
                ) from None
            if before.sha256 != chain[0].manifest.onto_sha256:
                raise DataDamaged(f"backup {chain[0].name} stands on another {below} than the one in {self.path}")
            chain.insert(0, before)
        return chain

    def standing_on(self, backups: Sequence[Backup]) -> dict[str, list[Backup]]:
        """By full backup, it and all increments that stand on it, the oldest first."""
        full_of: dict[str, str] = {}
        groups: dict[str, list[Backup]] = {}
        for backup in backups:
            below = backup.manifest.onto
            full = backup.name if below is None else full_of.get(below, below)
            full_of[backup.name] = full
            groups.setdefault(full, []).append(backup)
        return groups

    def remove_unfinished(self) -> list[str]:
        """Removes what killed backups have left; under :meth:`locked`."""
        _, unreadable = self.look()
        left = [each.name for each in unreadable if not (self.path / each.name / MANIFEST).exists()]
        for name in left:
            shutil.rmtree(self.path / name)
        return left

    def remove(self, backup: Backup) -> None:
        """Its manifest first: a half-removed one is no backup any more."""
        (backup.path / MANIFEST).unlink()
        sync_folder(backup.path)
        shutil.rmtree(backup.path)

    def expired(self, backups: Sequence[Backup], keep_days: float, now_us: int) -> list[Backup]:
        """Which ones hold cells of a backup from before ``keep_days``, the increments on a full backup with it. Raises ProtectData when the newest of all is
        among them: nothing would be left to restore."""
        before_us = now_us - int(keep_days * DAY_US)
        groups = self.standing_on(backups).values()
        gone = [backup for group in groups if group[0].manifest.created_at_us < before_us for backup in group]
        newest = max(backups, key=lambda each: each.manifest.created_at_us, default=None)
        if newest is not None and newest in gone:
            raise ProtectData(
                f"nothing removed: the newest backup, {newest.name}, is older than {keep_days:g} days or stands on one that is. "
                f"Take a full one first: cellfeed backup create {self.path}"
            )
        return gone

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Held by the one who makes or removes backups here. Raises InvalidRequest when somebody else does."""
        new = [place for place in (self.path, *self.path.parents) if not place.is_dir()]
        self.path.mkdir(parents=True, exist_ok=True)
        for place in new:
            sync_folder(place.parent)  # a power cut that takes the folder takes every backup in it
        with (self.path / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InvalidRequest(f"another backup is being made, or removed, in {self.path}: wait until it is done") from None
            yield

    def _read(self, place: Path) -> Backup:
        try:
            content = (place / MANIFEST).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"{self.path} has no backup {place.name!r}; `cellfeed backup list {self.path}` shows those that are there") from None
        except OSError as error:
            raise StorageUnavailable(f"{place / MANIFEST}: {error.strerror}") from error
        manifest = decode_manifest(content, place.name)
        if manifest.name != place.name:
            raise DataDamaged(f"{place}: the manifest is that of backup {manifest.name}: the folder must keep its name")
        return Backup(place, manifest, digest_of_manifest(content))


def sync_folder(path: Path) -> None:
    """Puts the names in a folder on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, content: bytes) -> None:
    """A file that is whole and on disk, or not there."""
    staged = path.with_name(f".{path.name}.staged")
    with staged.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    staged.replace(path)
    sync_folder(path.parent)
