"""A folder of backups on a file system that knows `flock`, `fsync` and `rename`: a disk, not an
object store mounted as one."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from cellfeed.store.backups.places.contract import Entry, Place, Writing
from cellfeed.store.backups.synced import make_folders, sync_folder, write_synced
from cellfeed.store.errors import InvalidRequest

LOCK: Final = "lock"


class LocalWriting:
    """See :class:`~cellfeed.store.backups.places.contract.Writing`."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("xb")

    def write(self, content: bytes) -> None:
        self._file.write(content)

    def finish(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


@dataclass(frozen=True)
class LocalPlace:
    """See :class:`~cellfeed.store.backups.places.contract.Place`. The lock is the process's own
    until it ends, so P3 and the second half of P6 hold by themselves."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        return self.path.name

    def inside(self, name: str) -> Place:
        return LocalPlace(self.path / name)

    def is_folder(self) -> bool:
        try:
            return stat.S_ISDIR(self.path.lstat().st_mode)
        except OSError:
            return False

    def entries(self) -> list[Entry]:
        return sorted(Entry(each.name, self.is_file(each.name)) for each in self.path.iterdir())

    def is_file(self, name: str) -> bool:
        try:
            return stat.S_ISREG((self.path / name).lstat().st_mode)
        except OSError:
            return False

    def size(self, name: str) -> int | None:
        try:
            return (self.path / name).stat().st_size
        except OSError:
            return None

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def open(self, name: str) -> BinaryIO:
        return (self.path / name).open("rb")

    def write(self, name: str, content: bytes) -> None:
        write_synced(self.path / name, content)

    def create(self, name: str) -> Writing:
        return LocalWriting(self.path / name)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def make(self) -> None:
        self.path.mkdir()

    def remove_rests(self) -> None:
        """They have names, and go with the other files of a backup."""

    def remove_if_empty(self) -> None:
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def sync(self) -> None:
        sync_folder(self.path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        make_folders(self.path)
        file = os.open(
            self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644
        )
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InvalidRequest(
                    f"another backup is being made, or removed, in {self}: wait until it is done"
                ) from None
            yield
        finally:
            os.close(file)
