"""One SQLite file as the engine and the state table use it: a writer, readers, and an orderly end.

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
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

from cellfeed.store import forks
from cellfeed.store.engines.in_use import InUse
from cellfeed.store.engines.sqlite.checkpoints import Checkpoints
from cellfeed.store.engines.sqlite.connect import (
    WRITE_LOCK_TIMEOUT_S,
    connect,
    retry_busy,
    sqlite_error,
)
from cellfeed.store.engines.sqlite.same_files import SameFiles
from cellfeed.store.engines.sqlite.transaction import write_transaction
from cellfeed.store.errors import CellfeedError, StorageUnavailable

_READERS_KEPT_MAX: Final = 16
"""Idle reader connections kept open; each holds a few file handles and its page cache."""


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
            # BEGIN IMMEDIATE must return at once when the lock is taken: retry_busy does the
            # waiting.
            self._writer.execute("PRAGMA busy_timeout=0")
            retry_busy(
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
