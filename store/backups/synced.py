"""Files and names that are on disk when the call returns."""

from __future__ import annotations

import os
from pathlib import Path


def sync_folder(path: Path) -> None:
    """Puts the names in a folder on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(path: Path) -> None:
    """Makes a folder, and those above it that are missing, and puts their names on disk."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in reversed(missing):
        sync_folder(each.parent)


def write_synced(path: Path, content: bytes) -> None:
    """A file that is whole and on disk, or as it was before: the content is synced before the
    rename, the name after it."""
    staged = path.with_name(f".{path.name}.staged")
    with staged.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    staged.replace(path)
    sync_folder(path.parent)
