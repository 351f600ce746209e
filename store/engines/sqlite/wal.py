"""The write-ahead log of a SQLite file: how many frames it holds, and which processes keep it from
starting again.

A WAL starts again from its beginning, so the size of the file says only how long it once was. But
its header has a salt that every frame of the current round repeats, and no older frame has. So a
look at one frame says whether the WAL is that long
(https://www.sqlite.org/fileformat2.html#walformat).
Frames of a transaction that was rolled back count until they are overwritten: the count may be too
high, never too low.

A process that closes *any* descriptor of a file loses its locks on it. SQLite locks the database
and its shared memory, and neither is opened here; it locks nothing in the WAL.
"""

from __future__ import annotations

import os
import weakref
from bisect import bisect_left
from pathlib import Path
from typing import Final

_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24
_PAGE_SIZE: Final = slice(8, 12)
_SALTS: Final = slice(16, 24)
_FRAME_SALTS: Final = 8
"""Where the salts begin in the header of a frame."""

_READ_LOCKS: Final = range(124, 128)
"""Bytes of the shared memory that a reader locks whose snapshot lies in the WAL: ``WAL_READ_LOCK``
1 to 4 (https://www.sqlite.org/walformat.html#wal_locks)."""


class Wal:
    """The WAL beside ``path``, which is open. Raises OSError where it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(f"{path}-wal", os.O_RDONLY | os.O_CLOEXEC)
        # As a connection of SQLite: one that nobody closes ends without a word.
        self._end = weakref.finalize(self, os.close, self._descriptor)

    def round(self) -> bytes:
        """Another value each time that the WAL has started again; empty before its first frame."""
        return self._header()[_SALTS]

    def has_frames(self, frames: int) -> bool:
        """Whether the WAL has at least so many frames."""
        return frames <= 0 or self._is_current(frames, self._header())

    def frames(self) -> int:
        """How many frames the WAL has."""
        header = self._header()
        if not header:
            return 0
        longest = os.fstat(self._descriptor).st_size // _frame_bytes(header)
        return bisect_left(
            range(1, longest + 1), True, key=lambda frame: not self._is_current(frame, header)
        )

    def used_bytes(self) -> int:
        """The bytes of these frames."""
        header = self._header()
        return self.frames() * _frame_bytes(header) if header else 0

    def close(self) -> None:
        """May be called again."""
        self._end()
        self._descriptor = -1  # the number may be another file's by now

    def _header(self) -> bytes:
        header = os.pread(self._descriptor, _HEADER_BYTES, 0)
        return header if len(header) == _HEADER_BYTES else b""

    def _is_current(self, frame: int, header: bytes) -> bool:
        if not header:
            return False
        offset = _HEADER_BYTES + (frame - 1) * _frame_bytes(header) + _FRAME_SALTS
        return os.pread(self._descriptor, 8, offset) == header[_SALTS]


def _frame_bytes(header: bytes) -> int:
    return _FRAME_HEADER_BYTES + int.from_bytes(header[_PAGE_SIZE], "big")


def readers(path: Path) -> list[int]:
    """The processes that read a snapshot in the WAL of ``path`` just now, by pid; empty where the
    system has no ``/proc/locks``."""
    try:
        inode = Path(f"{path}-shm").stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    found = set()
    for fields in map(str.split, lines):
        if len(fields) == 8 and fields[5].rpartition(":")[2] == str(inode):
            first, last = int(fields[6]), fields[7]
            if last != "EOF" and first <= _READ_LOCKS[-1] and int(last) >= _READ_LOCKS[0]:
                found.add(int(fields[4]))
    return sorted(found)
