"""A folder of backups with increments made of archived binlogs, for a restore: each such tail
(:mod:`cellfeed.store.backups.binlogs.tail`) stands in the folder's order behind the increment that
it continues. So it serves as any increment does: the newest backup, the one behind a point in
time, or a later one with readers and erasures.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cellfeed.store.backups.backup import Backup, Unreadable, with_identities
from cellfeed.store.backups.binlogs.archive import BinlogArchive
from cellfeed.store.backups.binlogs.archives import archives_in
from cellfeed.store.backups.binlogs.tail import Tail, tail_of
from cellfeed.store.backups.encryption import Identities
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.manifest import Reader
from cellfeed.store.backups.places.contract import Place
from cellfeed.store.backups.prune import damaged_of
from cellfeed.store.errors import NotFound, ProtectData

_MARKER: Final = "cellfeed-restoring"


class TailedFolder(BackupFolder):
    """See the module. It is read, and nothing is written to it."""

    def __init__(self, place: Place, tails: Sequence[Tail]) -> None:
        super().__init__(place)
        self.tails = tails
        self._by_name = {each.backup.name: each.backup for each in tails}

    @property
    def beyond(self) -> list[Reader]:
        """The logs whose archive has ids behind a gap."""
        return [reader for each in self.tails for reader in each.beyond]

    def look(self) -> tuple[list[Backup], list[Unreadable]]:
        found, unreadable = super().look()
        found += self._by_name.values()
        return sorted(found, key=lambda each: each.manifest.order), unreadable

    def _read(self, place: Place) -> Backup:
        return self._by_name.get(place.name) or super()._read(place)


@contextmanager
def with_tails(
    folder: BackupFolder, datastore: str, identities: Identities | None, directory: Path
) -> Iterator[TailedFolder]:
    """The folder with its tails, which lie in ``directory`` until the end: the directory is made,
    and removed with the rest that a killed run has left there. Raises DataDamaged, ProtectData,
    also for a folder there that no such run has made, and InvalidRequest where an archive is
    encrypted and no identity fits."""
    by_history = dict[str, list[BinlogArchive]]()
    for archive in archives_in(folder.place, datastore):
        by_history.setdefault(archive.marker.history.history_id, []).append(archive)
    if not by_history:
        yield TailedFolder(folder.place, [])
        return
    was_there = directory.parent.exists()
    _make(directory)
    try:
        tails = []
        for number, (history_id, archives) in enumerate(sorted(by_history.items())):
            chain = _newest_of(folder, datastore, history_id)
            if not chain:
                continue
            _refuse_other_shards(archives, chain[-1])
            inside = directory / str(number)
            inside.mkdir()
            tail = tail_of(with_identities(chain, identities), archives, identities, inside)
            tails += [tail] if tail is not None else []
        yield TailedFolder(folder.place, tails)
    finally:
        _remove(directory)
        if not was_there and not any(directory.parent.iterdir()):
            directory.parent.rmdir()


def _make(directory: Path) -> None:
    """An empty folder with a marker, which is written first: only one with it is ever removed."""
    if directory.is_symlink() or directory.exists():
        is_folder = directory.is_dir() and not directory.is_symlink()
        names = [each.name for each in directory.iterdir()] if is_folder else []
        if not is_folder or (names and _MARKER not in names):
            raise ProtectData(
                f"nothing restored: {directory} is in the way, and no restore has made it: it has"
                f" no file {_MARKER}. Move it elsewhere"
            )
        _remove(directory)
    directory.mkdir(parents=True, mode=0o700)
    (directory / _MARKER).touch()


def _remove(directory: Path) -> None:
    """The marker goes last: the rest of the folder is recognised after a kill."""
    for each in directory.iterdir():
        if each.is_dir():
            shutil.rmtree(each)
        elif each.name != _MARKER:
            each.unlink()
    (directory / _MARKER).unlink(missing_ok=True)
    directory.rmdir()


def _newest_of(folder: BackupFolder, datastore: str, history_id: str) -> list[Backup]:
    """The newest whole backup of a history, with those that it stands on; none where there is
    none."""
    try:
        found, _ = folder.look()
    except NotFound:
        return []
    reasons = damaged_of(found)
    own = [
        each
        for each in found
        if each.name not in reasons
        and each.manifest.datastore == datastore
        and each.manifest.history.history_id == history_id
    ]
    return folder.chain(own[-1]) if own else []


def _refuse_other_shards(archives: Sequence[BinlogArchive], base: Backup) -> None:
    for archive in archives:
        if archive.marker.shards != base.manifest.shards:
            raise ProtectData(
                f"nothing restored: {archive} is of {archive.marker.shards} shards, backup"
                f" {base.name} of {base.manifest.shards}: move the archive out of the folder"
            )
