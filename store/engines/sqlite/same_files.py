"""Whether a path still leads to the files that a process has open.

Somebody may delete a datastore's file, replace it, or move its folder while a process has it open.
Writes to the open file are then lost with the process. So device and inode of the file, its WAL and
its shared memory are compared with those that were opened. An inode cannot be used again while the
file is open.

**A folder whose times stand still has the same entries.** Each change of an entry changes the
folder's modification and status change times. Nobody can set the latter back. So a commit asks the
folder alone, which is one system call instead of three. That holds only when the times were already
old as the files were last compared: within one tick of the clock a second change leaves no trace.
It does not hold for symbolic links, which lead out of the folder.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from cellfeed.store.errors import StorageUnavailable

_PARTS: Final = ("", "-wal", "-shm")
"""The files that SQLite has open of a database in WAL mode. Processes that share the file without
sharing one of these do not see each other's locks and commits."""

_LOOKS_PER_S: Final = 20
"""How often readers compare, and how often the files themselves are compared where the folder
stands still: a comparison takes some ten microseconds."""

_TICK_NS: Final = 5_000_000_000
"""A folder's times are old after it. Longer than the coarsest clock of a file system: FAT counts
in steps of 2 s."""


class SameFiles:
    """The files of one database; made before the database is opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parts = [f"{path.absolute()}{suffix}" for suffix in _PARTS]
        self._folder = path.absolute().parent
        self._before = self._inodes(self._parts[:1])
        self._opened: list[tuple[int, int]] | None = None
        self._compared_s = 0.0
        self._still: tuple[int, ...] | None = None

    def opened(self) -> bool:
        """Remembers the files, which are open now; False when they were replaced meanwhile, or one
        is not there."""
        self._opened = self._inodes(self._parts)
        return self._opened is not None and (
            self._before is None or self._before[0] == self._opened[0]
        )

    def check(self) -> None:
        """Raises StorageUnavailable when the path leads to other files than those that are open,
        or to none."""
        still = self._still
        if still is None or self._is_due() or self._times() != still:
            self._compare()

    def look(self) -> None:
        """:meth:`check`, at most ``_LOOKS_PER_S`` times a second."""
        if self._is_due():
            self._compare()

    def _is_due(self) -> bool:
        return time.monotonic() >= self._compared_s + 1 / _LOOKS_PER_S

    def _compare(self) -> None:
        times = self._times()
        if self._inodes(self._parts) != self._opened:
            self._compared_s = 0.0  # the next look compares as well
            raise StorageUnavailable(
                f"{self._path} is not the file any more that this process has open: it was deleted,"
                " replaced or moved away, or its -wal or -shm was. End every process of the"
                " datastore, put the files back (or restore a backup), and start them again"
            )
        is_old = times is not None and max(times[2:]) < time.time_ns() - _TICK_NS
        self._still = times if is_old and not any(map(os.path.islink, self._parts)) else None
        self._compared_s = time.monotonic()

    def _times(self) -> tuple[int, ...] | None:
        """The folder, and when its entries last changed."""
        try:
            found = self._folder.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns

    @staticmethod
    def _inodes(parts: list[str]) -> list[tuple[int, int]] | None:
        """Device and inode of each; None when one is not there."""
        try:
            return [(found.st_dev, found.st_ino) for found in map(os.stat, parts)]
        except OSError:
            return None
