"""The promises of a place to the folder of backups that lies in it.

    P1  `read`, `size` and `open` see every earlier write, at once and as a whole.
    P2  `write` leaves the new content or the old one, never a part; when it returns, the new
        content survives a power cut.
    P3  `write` replaces the content that this process has read, or makes a file that it found
        missing. Where another process has written in between, it fails (a place whose lock its
        holder cannot lose needs no check).
    P4  a file that `create` gives has its name at the latest when `finish` returns. It survives a
        power cut once `sync` has returned.
    P5  `make` fails where anything has the name: no two processes make the same folder.
    P6  one process at a time holds the lock of a folder. A process that has lost it (it was paused
        for long) can neither write nor remove: these calls fail.
    P7  nothing follows links, and only a regular file is a file.

Methods raise OSError as the calls of :mod:`os` do: FileNotFoundError, FileExistsError,
PermissionError, and others with `strerror` and `filename`. A place that does not answer raises
StorageUnavailable: nobody takes that for a file that is missing or damaged.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import BinaryIO, NamedTuple, Protocol


class Entry(NamedTuple):
    """``is_file``: a regular file, no folder, no link."""

    name: str
    is_file: bool


class Writing(Protocol):
    """A file that is being written."""

    def write(self, content: bytes, /) -> object: ...

    def finish(self) -> None:
        """Ends it (P4)."""
        ...


class Place(Protocol):
    """A folder of backups, or that of one backup in it; ``str()`` names it as commands do."""

    @property
    def name(self) -> str:
        """The last part."""
        ...

    def inside(self, name: str) -> Place:
        """A folder in it, which may not exist."""
        ...

    def is_folder(self) -> bool: ...

    def entries(self) -> list[Entry]:
        """The entries in it, in the order of names."""
        ...

    def is_file(self, name: str) -> bool: ...

    def size(self, name: str) -> int | None:
        """In bytes; None where there is none, or it is not known."""
        ...

    def read(self, name: str) -> bytes: ...

    def open(self, name: str) -> BinaryIO:
        """To be read; it can be sought in."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """P2, P3."""
        ...

    def create(self, name: str) -> Writing:
        """A new file; fails where there is one."""
        ...

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""
        ...

    def make(self) -> None:
        """P5."""
        ...

    def remove_rests(self) -> None:
        """Removes the rests of unfinished files beside their names."""
        ...

    def remove_if_empty(self) -> None: ...

    def sync(self) -> None:
        """Names that were made or removed survive a power cut."""
        ...

    def locked(self) -> AbstractContextManager[None]:
        """Makes it, with the folders above it, and holds it (P6). Raises InvalidRequest while
        another process does; at its end StorageUnavailable, where the lock was lost."""
        ...
