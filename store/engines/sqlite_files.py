"""SQLite connections as the engine and the state table use them: WAL, fsync at every commit, short fair waits for the one write lock.

``synchronous=FULL`` syncs the WAL before the commit becomes visible to any other connection, so nothing can be read that a power cut could take
back (E5). NORMAL would let ids that readers have seen be given to other cells after a power cut.

Checkpoints never run beside a commit, in any process. SQLite 3.7.0 to 3.51.2 has a race there ("the WAL-reset bug" in its documentation of WAL): a
checkpoint that overlaps a commit which starts the WAL anew may skip that commit's pages later, so a committed transaction is lost. Python brings whatever
SQLite it was built with, so no connection checkpoints by itself; a writer does it from time to time, on a second connection, while it holds the write lock.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import uniform
from typing import Final

from store.errors import OutcomeUnknown, StorageUnavailable
from store.failpoints import declare, failpoint

declare("sqlite.checkpoint.inside")

_log = logging.getLogger("cellfeed.sqlite")

WRITE_LOCK_TIMEOUT_S: Final = 10.0
"""How long a writer waits for another process's transaction. Longer than any transaction of ``GROUP_CELLS_MAX`` cells takes on a busy disk."""

_CHECKPOINT_BYTES: Final = 16 << 20
"""What a process writes, about, before it checkpoints: rare under load, and the WAL stays small."""

_COMMIT_BYTES: Final = 20 << 10
"""What the smallest commit adds to the WAL: the pages of a row, of its indexes, and of a counter."""

_READERS_KEPT_MAX: Final = 16
"""Idle reader connections kept open; each holds a few file handles and its page cache."""


def connect(path: Path) -> sqlite3.Connection:
    """A connection in autocommit mode for use by one thread at a time. Raises StorageUnavailable."""
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=WRITE_LOCK_TIMEOUT_S, cached_statements=64)
    except sqlite3.Error as error:
        raise StorageUnavailable(f"{path}: {error}") from error
    try:
        _retry_busy(lambda: connection.execute("PRAGMA journal_mode=WAL"), time.monotonic() + WRITE_LOCK_TIMEOUT_S)
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute("PRAGMA cache_size=-32768")
        connection.execute("PRAGMA mmap_size=0")  # a failing disk under a memory map ends the process; a read call gives an error
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA secure_delete=ON")  # what is erased or trimmed leaves no bytes in free space; puts free nothing
    except sqlite3.Error as error:
        connection.close()
        raise StorageUnavailable(f"{path}: {error}") from error
    return connection


@contextmanager
def write_transaction(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    """BEGIN IMMEDIATE … COMMIT. The write lock of the file is held from the first statement to the commit, against every process (E2).

    Raises StorageUnavailable when nothing was written, OutcomeUnknown when the commit itself failed (after an I/O error in the sync, the WAL may
    or may not hold the transaction once the file is opened again).
    """
    try:
        _retry_busy(lambda: connection.execute("BEGIN IMMEDIATE"), time.monotonic() + WRITE_LOCK_TIMEOUT_S)
    except sqlite3.Error as error:
        raise StorageUnavailable(f"{path}: nothing written: {error}") from error
    try:
        yield
    except BaseException as error:
        connection.rollback()
        if isinstance(error, sqlite3.Error):
            raise StorageUnavailable(f"{path}: nothing written: {error}") from error
        raise
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        if connection.in_transaction:
            connection.rollback()
        raise OutcomeUnknown(f"{path}: the commit failed: {error}; put the same cells again to learn whether they were written") from error


def _retry_busy(attempt: Callable[[], object], deadline_s: float) -> None:
    # SQLite's own busy handler sleeps up to 100 ms between attempts; two busy processes wait far less with short random pauses.
    while True:
        try:
            attempt()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or time.monotonic() > deadline_s:
                raise
            time.sleep(uniform(0.0002, 0.002))
        else:
            return


def _make_folder(path: Path) -> None:
    """Makes a folder whose name is on disk, as are those of the folders that it lies in: SQLite syncs the names in it,
    and a power cut that takes the folder takes every commit. Another process may have made it a moment ago, so an
    existing one is synced too, where its parent can be read."""
    if not path.is_dir():
        _make_folder(path.parent)
        path.mkdir(exist_ok=True)
    with suppress(PermissionError):
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)


class SqliteFile:
    """One file: a writer connection, a stack of reader connections, and an orderly end (E12)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _make_folder(path.parent)
        self._writer = connect(path)
        # BEGIN IMMEDIATE must return at once when the lock is taken: _retry_busy does the waiting.
        self._writer.execute("PRAGMA busy_timeout=0")
        self._writer_lock = threading.Lock()
        self._written_bytes = 0
        self._checkpointer: sqlite3.Connection | None = None
        self._readers: list[sqlite3.Connection] = []
        self._state = threading.Condition()
        self._in_use = 0
        self._closed = False

    @contextmanager
    def write(self, size_bytes: int = 0) -> Iterator[sqlite3.Connection]:
        """The writer connection inside a transaction; commits at the end (see :func:`write_transaction`). ``size_bytes``: about what it writes."""
        with self._using(), self._writer_lock:
            with write_transaction(self._writer, self.path):
                yield self._writer
            self._written_bytes += size_bytes + _COMMIT_BYTES
            if self._written_bytes > _CHECKPOINT_BYTES:
                self._checkpoint()

    def _checkpoint(self) -> None:
        """Moves the WAL into the file while nobody can commit; see the module. One that fails is tried again after the next commit: what is committed is in the
        WAL until then."""
        try:
            if self._checkpointer is None:
                self._checkpointer = connect(self.path)
            self._writer.execute("BEGIN IMMEDIATE")
        except sqlite3.Error:
            return  # another process writes just now
        try:
            failpoint("sqlite.checkpoint.inside")
            self._checkpointer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self._written_bytes = 0
        except sqlite3.Error as error:
            _log.warning("%s: no checkpoint just now: %s", self.path, error)
        finally:
            self._writer.rollback()

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A reader connection. Each statement sees one consistent state; use :meth:`snapshot` for several."""
        with self._using():
            try:
                connection = self._readers.pop()
            except IndexError:
                connection = connect(self.path)
            try:
                yield connection
            except sqlite3.Error as error:
                raise StorageUnavailable(f"{self.path}: read failed: {error}") from error
            finally:
                if connection.in_transaction:
                    connection.rollback()
                if len(self._readers) < _READERS_KEPT_MAX:
                    self._readers.append(connection)
                else:
                    connection.close()

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """A reader connection whose statements all see the same state of the file."""
        with self.read() as connection:
            connection.execute("BEGIN")
            yield connection

    def close(self) -> None:
        """Waits for calls under way, then closes every connection; later calls raise StorageUnavailable."""
        with self._state:
            self._closed = True
            self._state.wait_for(lambda: self._in_use == 0)
            for connection in self._readers:
                connection.close()
            self._readers.clear()
            if self._checkpointer is not None:
                self._checkpointer.close()
            self._writer.close()

    @contextmanager
    def _using(self) -> Iterator[None]:
        with self._state:
            if self._closed:
                raise StorageUnavailable(f"{self.path} is closed")
            self._in_use += 1
        try:
            yield
        finally:
            with self._state:
                self._in_use -= 1
                self._state.notify_all()
