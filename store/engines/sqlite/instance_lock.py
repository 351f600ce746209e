"""The lock on an embedded datastore: shared by every process that has it open, exclusive for a
process that replaces or rewrites its files.

A restore and a scrub hold it alone, so neither runs beside a worker, and no worker starts beside
them. The lock is a file **beside** the datastore's folder (``trips.lock`` beside ``trips/``). So it
is still found after the folder of a running worker was moved away to make room for a restore.

It is ``flock``: the kernel frees it when the last descriptor is closed, so a process that was
killed holds nothing. A child of ``fork`` shares its parent's lock, and keeps it until both have
closed it or ended. So nothing here unlocks: that would take the lock from the other one; closing
does not.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from cellfeed.store.errors import InvalidRequest, ProtectData, StorageUnavailable


def lock_path(directory: Path) -> Path:
    """The lock of the datastore in ``directory``."""
    place = directory.absolute()
    return place.with_name(f"{place.name}.lock")


class SharedLock:
    """Held from its making until :meth:`close`. Raises StorageUnavailable while a restore or a
    scrub holds the lock."""

    def __init__(self, directory: Path) -> None:
        self._file = _open(directory)
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise StorageUnavailable(
                f"{directory} is being restored or scrubbed: try again when that has ended"
            ) from None

    def close(self) -> None:
        self._file.close()


@contextmanager
def exclusive_lock(directory: Path, purpose: str) -> Iterator[None]:
    """Holds the lock alone. ``purpose``: the reason for holding it, for the message. Raises
    ProtectData while any process has the datastore open, InvalidRequest while another restore or
    scrub is under way."""
    with _open(directory) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                raise ProtectData(
                    f"{purpose} is refused: a process has the datastore in {directory} open"
                    f" ({lock_path(directory)} is locked). End every process of the instance"
                    " (`cellfeed down`), also of one whose folder was moved away meanwhile, and"
                    " run it again"
                ) from None
            raise InvalidRequest(
                f"{purpose} is refused: another restore or scrub of {directory} is under way"
            ) from None
        yield


def _open(directory: Path) -> BinaryIO:
    path = lock_path(directory)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")
    except OSError as error:
        raise StorageUnavailable(f"{path}: {error.strerror}") from error
