"""A SQLite connection with the settings that an embedded store relies on, and the error of ours for
one of SQLite's.

``synchronous=FULL`` syncs the WAL before the commit becomes visible to any other connection. So a
power cut takes back nothing that was read (E5). With NORMAL, ids that readers have seen could get
other cells after a power cut.

No connection checkpoints by itself: :mod:`.checkpoints` does it, safe from SQLite's WAL-reset bug
and without long stalls.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from random import uniform
from typing import Final

from cellfeed.store.errors import CellfeedError, DataDamaged, StorageUnavailable

WRITE_LOCK_TIMEOUT_S: Final = 10.0
"""How long a writer waits for another process's transaction. Longer than any transaction of
``GROUP_CELLS_MAX`` cells takes on a busy disk."""


_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def connect(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """A connection in autocommit mode for use by one thread at a time. Raises StorageUnavailable,
    also where there is no file and ``create`` is not set; DataDamaged."""
    uri = f"{path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}"
    try:
        connection = sqlite3.connect(
            uri,
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=WRITE_LOCK_TIMEOUT_S,
            cached_statements=64,
        )
    except sqlite3.Error as error:
        raise sqlite_error(path, "", error) from error
    try:
        retry_busy(
            lambda: connection.execute("PRAGMA journal_mode=WAL"),
            time.monotonic() + WRITE_LOCK_TIMEOUT_S,
        )
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute("PRAGMA cache_size=-32768")
        connection.execute(
            "PRAGMA mmap_size=0"
        )  # a failing disk under a memory map ends the process; a read call gives an error
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute(
            "PRAGMA secure_delete=ON"
        )  # an erased or trimmed cell leaves no bytes in free space; puts free nothing
        connection.execute(
            "PRAGMA cell_size_check=ON"
        )  # damage in a page is noticed when the page is read
    except (sqlite3.Error, UnicodeDecodeError) as error:
        connection.close()
        raise sqlite_error(path, "", error) from error
    return connection


def sqlite_error(path: Path, what: str, error: sqlite3.Error | UnicodeDecodeError) -> CellfeedError:
    """The error of ours for one of SQLite's, where nothing was written. ``what``: the meaning of
    that for the caller, ``"nothing written: "``."""
    code = getattr(error, "sqlite_errorcode", None)
    # Text that is not UTF-8 has no code of SQLite's: Python decodes it.
    damaged = (
        code & 0xFF in _DAMAGED
        if code is not None
        else isinstance(error, sqlite3.OperationalError | UnicodeDecodeError)
    )
    if damaged:
        return DataDamaged(
            f"{path}: {what}the file is damaged: {error}. Restore it from a backup; do not repair"
            " it in place while anything runs"
        )
    return StorageUnavailable(f"{path}: {what}{error}")


def retry_busy(attempt: Callable[[], object], deadline_s: float) -> None:
    # SQLite's own busy handler sleeps up to 100 ms between attempts; two busy processes wait far
    # less with short random pauses.
    while True:
        try:
            attempt()
        except sqlite3.OperationalError as error:
            if (
                error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
                or time.monotonic() > deadline_s
            ):
                raise
            time.sleep(uniform(0.0002, 0.002))
        else:
            return
