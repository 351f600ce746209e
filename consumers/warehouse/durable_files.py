"""Names that survive a power cut, and the put-if-absent that decides between two loaders.

A new name is on disk only when its directory is (``fsync(2)``), so every step of a commit ends with
one. A hard link (``link(2)``) is made by exactly one of any number of processes and shows the whole
content at once: a reader never sees half a commit. So a table needs a file system with hard links
and ``flock(2)``: any local one of Linux, not an object store.
"""

from __future__ import annotations

import os
from pathlib import Path

_DIRECTORY_MODE = 0o755


def make_directory(path: Path) -> None:
    """Makes a directory and its parents, each of them on disk when this returns."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(mode=_DIRECTORY_MODE, exist_ok=True)
    fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """Puts the names in a directory on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link_if_absent(source: Path, target: Path) -> bool:
    """Gives the file at ``source`` the second name ``target``, unless that exists; returns whether
    it was this call that did.

    The caller still has to put the name on disk (:func:`fsync_directory` of ``target.parent``).
    """
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    return True
