"""One write transaction of a SQLite file, from its lock to its commit, and the outcome of a commit
that failed."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cellfeed.store.engines.sqlite.connect import WRITE_LOCK_TIMEOUT_S, retry_busy, sqlite_error
from cellfeed.store.errors import OutcomeUnknown, StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint

declare("sqlite.file.before_commit", "sqlite.file.after_commit")


@contextmanager
def write_transaction(
    connection: sqlite3.Connection, path: Path, check: Callable[[], None]
) -> Iterator[None]:
    """BEGIN IMMEDIATE … COMMIT. The write lock of the file is held from the first statement to the
    commit, against every process (E2). ``check`` raises StorageUnavailable when the path leads to
    another file than the connection.

    Raises StorageUnavailable when nothing was written. That includes a commit that found no room
    (its last frame, the one that commits, was not written), or was refused and taken back.

    Raises OutcomeUnknown for files that were replaced meanwhile, and for every other failure of the
    commit. After an I/O error in the sync, the WAL may or may not hold the transaction once the
    file is opened again.
    """
    try:
        if connection.in_transaction:
            connection.rollback()  # one whose rollback failed
        retry_busy(
            lambda: connection.execute("BEGIN IMMEDIATE"), time.monotonic() + WRITE_LOCK_TIMEOUT_S
        )
    except sqlite3.Error as error:
        raise sqlite_error(path, "nothing written: ", error) from error
    try:
        yield
        check()
    except BaseException as error:
        with suppress(
            sqlite3.Error
        ):  # tried again before the next transaction; without its commit nothing of this one counts
            connection.rollback()
        if isinstance(error, sqlite3.Error | UnicodeDecodeError):
            raise sqlite_error(path, "nothing written: ", error) from error
        raise
    failpoint("sqlite.file.before_commit")
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        if _not_committed(connection, error):
            raise StorageUnavailable(f"{path}: nothing written: {error}") from error
        raise OutcomeUnknown(
            f"{path}: the commit failed: {error}; put the same cells again to learn whether they"
            " were written"
        ) from error
    failpoint("sqlite.file.after_commit")
    try:
        check()
    except StorageUnavailable as error:
        raise OutcomeUnknown(
            f"committed, perhaps to files that nobody will open: {error}"
        ) from error


def _not_committed(connection: sqlite3.Connection, error: sqlite3.Error) -> bool:
    """Whether a COMMIT that failed has certainly written nothing; takes its transaction back."""
    full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    if connection.in_transaction:
        try:
            connection.rollback()
        except sqlite3.Error:
            return False
        return True
    return full
