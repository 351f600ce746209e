"""Where a run's temporary files are: in memory, where there is room for them.

Thousands of tests open a store or start a server, and each of these syncs its files many times. On
a disk a test waits for that more than for anything else. ``tests/durability`` looks whether the
product syncs, and in which order: it records its programs on a disk.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

MEMORY_DISK: Final = Path("/dev/shm")
DISK: Final = Path("/var/tmp")

ROOM_MIN_BYTES: Final = 6 << 30
"""Three workers with three MariaDB servers each have 2 GiB of files at most; the servers and
clients themselves need memory, too."""

FILES_MIN: Final = 1_000_000
"""A disk in memory has room for three million files here, and other programs use it as well."""

_PREFIX: Final = "cellfeed-tests-"
_LEFT_FOR_S: Final = 600
"""How long the files of a run that failed or was killed stay, for people to look at."""


def use_memory() -> None:
    """Lets this process, and all that it starts, have their temporary files in memory. Nothing
    changes where TMPDIR is set or room is short."""
    if "TMPDIR" in os.environ or not _has_room():
        return
    _remove_left()
    own = MEMORY_DISK / f"{_PREFIX}{os.getpid()}"
    own.mkdir(exist_ok=True)
    own.chmod(0o755)  # servers run as users of their own
    os.environ["TMPDIR"] = str(own)
    tempfile.tempdir = None


def remove_own() -> None:
    """Removes the files of this process's run; a worker of another's run removes nothing."""
    shutil.rmtree(MEMORY_DISK / f"{_PREFIX}{os.getpid()}", ignore_errors=True)


def _has_room() -> bool:
    try:
        disk = os.statvfs(MEMORY_DISK)
    except OSError:
        return False
    if disk.f_flag & os.ST_NOEXEC or disk.f_favail < FILES_MIN:
        return False
    free = min(disk.f_bavail * disk.f_frsize, psutil.virtual_memory().available)
    return free >= ROOM_MIN_BYTES


def _remove_left() -> None:
    for folder in MEMORY_DISK.glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX)
        with suppress(FileNotFoundError):  # another run has removed its own meanwhile
            if not psutil.pid_exists(int(pid)) and _age_s(folder) >= _LEFT_FOR_S:
                shutil.rmtree(folder, ignore_errors=True)


def _age_s(folder: Path) -> float:
    return time.time() - folder.stat().st_mtime
