"""SQLite connections as the engine and the state table use them: WAL, fsync at every commit, short
fair waits for the one write lock.

``synchronous=FULL`` syncs the WAL before the commit becomes visible to any other connection. So a
power cut takes back nothing that was read (E5). With NORMAL, ids that readers have seen could get
other cells after a power cut.

No connection checkpoints by itself: :mod:`.checkpoints` does it, safe from SQLite's WAL-reset bug
and without long stalls.

**Open files stay the same files** (:mod:`.same_files`). Every commit asks before and after. A
difference before the commit means that nothing is written; one after it, that the outcome is
unknown. Reads ask some times a second.

**Nothing behind a commit makes it fail.** A checkpoint needs descriptors and room; one that fails
is logged, and is tried again after the next commit.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from random import uniform
from typing import Final

from cellfeed.store import forks
from cellfeed.store.engines.in_use import InUse
from cellfeed.store.engines.sqlite.checkpoints import Checkpoints
from cellfeed.store.engines.sqlite.same_files import SameFiles
from cellfeed.store.errors import CellfeedError, DataDamaged, OutcomeUnknown, StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint

declare("sqlite.file.before_commit", "sqlite.file.after_commit")

WRITE_LOCK_TIMEOUT_S: Final = 10.0
"""How long a writer waits for another process's transaction. Longer than any transaction of
``GROUP_CELLS_MAX`` cells takes on a busy disk."""

_READERS_KEPT_MAX: Final = 16
"""Idle reader connections kept open; each holds a few file handles and its page cache."""


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
        _retry_busy(
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
        _retry_busy(
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


def _retry_busy(attempt: Callable[[], object], deadline_s: float) -> None:
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


def _make_folder(path: Path) -> None:
    """Makes a folder whose name is on disk, as are those of the folders that it lies in: SQLite
    syncs the names in it, and a power cut that takes the folder takes every commit. Another process
    may have made it a moment ago, so an existing one is synced too, where its parent can be read.
    """
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
    """One file: a writer connection, a stack of reader connections, and an orderly end (E12).
    ``create``: whether it is made when it is not there."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        if create:
            _make_folder(path.parent)
        self._same = SameFiles(path)
        self.check, self.look = self._same.check, self._same.look
        self._writer = connect(path, create=create)
        try:
            # BEGIN IMMEDIATE must return at once when the lock is taken: _retry_busy does the
            # waiting.
            self._writer.execute("PRAGMA busy_timeout=0")
            _retry_busy(
                lambda: self._writer.execute("SELECT count(*) FROM sqlite_schema").fetchall(),
                time.monotonic() + WRITE_LOCK_TIMEOUT_S,
            )
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self._writer.close()
            raise sqlite_error(path, "", error) from error
        # The read opened WAL and shared memory, which stay until the last connection is closed.
        if not self._same.opened():
            self._writer.close()
            raise StorageUnavailable(f"{path} was replaced while it was opened: try again")
        self._writer_lock = threading.Lock()
        self._readers: list[sqlite3.Connection] = []
        self._in_use = InUse()
        self._generation = forks.generation
        try:
            self._checkpoints = Checkpoints(path, self.another, self._using)
        except OSError as error:
            self._writer.close()
            raise StorageUnavailable(f"{path}: {error}") from error

    def another(self) -> sqlite3.Connection:
        """One more connection to the file that is open. Raises StorageUnavailable."""
        connection = connect(self.path)
        try:
            self.check()  # else it is one to another file
        except StorageUnavailable:
            connection.close()
            raise
        return connection

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """The writer connection inside a transaction; commits at the end (see
        :func:`write_transaction`)."""
        with self._using(), self._writer_lock:
            under_way = True
            try:
                with write_transaction(self._writer, self.path, self.check):
                    yield self._writer
                    under_way = False
            except BaseException:
                if under_way:
                    self._renew_writer()
                raise
            self._checkpoints.after_commit(self._writer)

    def _renew_writer(self) -> None:
        """After an error within a transaction: its traceback may keep a statement that has more
        rows. The connection could then begin no transaction behind another process's commit."""
        try:
            fresh = self.another()
        except CellfeedError:
            return  # it works on with the one that it has, or fails with the reason
        try:
            fresh.execute("PRAGMA busy_timeout=0")
            # opens WAL and shared memory before the old connection lets go of them
            fresh.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        except sqlite3.Error:
            fresh.close()
            return
        self._writer.close()
        self._writer = fresh

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A reader connection. Each statement sees one consistent state; use :meth:`snapshot` for
        several."""
        with self._using():
            try:
                connection = self._readers.pop()
            except IndexError:
                connection = self.another()
            try:
                self.look()
                yield connection
            except BaseException as error:
                # Its traceback may keep a statement that has more rows. Such a connection would
                # show the moment of that statement to its next readers.
                connection.close()
                if isinstance(error, sqlite3.Error | UnicodeDecodeError):
                    raise sqlite_error(self.path, "read failed: ", error) from error
                raise
            self._give_back(connection)

    def _give_back(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.rollback()
        except sqlite3.Error:
            connection.close()
            return
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
        """Waits for calls under way, then closes every connection; later calls raise
        StorageUnavailable. In a forked child it does nothing: SQLite's connections must not be
        carried over a ``fork()``, not even to their end."""
        if self.is_the_parents:
            return
        with self._in_use.closing():
            for connection in self._readers:
                connection.close()
            self._readers.clear()
            self._checkpoints.close()
            self._writer.close()

    @property
    def is_the_parents(self) -> bool:
        """Whether this process was forked since the file was opened."""
        return self._generation != forks.generation

    def check_process(self) -> None:
        """Raises StorageUnavailable in a forked child."""
        if self.is_the_parents:
            raise StorageUnavailable(
                f"{self.path} was opened before this process was forked; open it again in the child"
            )

    def _using(self) -> AbstractContextManager[None]:
        self.check_process()
        return self._in_use.call(f"{self.path} is closed")
