"""Moves the WAL into the database: the bulk of it beside commits, and a bounded rest between two.

SQLite 3.7.0 to 3.51.2 has a race, "the WAL-reset bug" in its documentation of WAL. A checkpoint
reads the WAL's header; then a commit starts the WAL again from its beginning. The checkpoint may
then mark frames of the new round as moved that are not, so a committed transaction is lost. Python
ships with any version of SQLite. So no connection checkpoints by itself, and **no commit of any
process can start the WAL again while a checkpoint of ours runs**. There are two kinds:

**Beside commits** a thread moves the bulk. It first pins the WAL: another connection begins a
snapshot, and ends it after the checkpoint. A commit starts the WAL again only with an exclusive
lock on all snapshots in it, so a pin in the WAL forbids that. If everything was moved before the
pin, it reads the database alone (slot 0). Then the checkpoint, which needs slot 0 exclusively, may
move nothing and marks nothing. Commits that come meanwhile append.

**Between commits** a writer moves the rest while it holds the write lock of the file, so nobody
commits. The rest is at most ``STEP_FRAMES``, which bounds how long a put waits for it. Then the
next commit starts the WAL again.

Where commits are faster than the disk the WAL reaches ``FULL_FRAMES``; from then on each commit
waits up to ``WAIT_S`` for the thread. A snapshot that somebody keeps open stops both kinds at its
place: the WAL grows until it ends, and the log says which process has it.

Crash points. Killed before or in a checkpoint: the WAL still has every frame, and the mark of moved
frames is set last, after the sync of the database. The kernel frees the locks of the pin.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from cellfeed.store.engines.sqlite.wal import Wal, readers
from cellfeed.store.failpoints import declare, failpoint

declare("sqlite.checkpoint.beside", "sqlite.checkpoint.inside")

_log = logging.getLogger("cellfeed.sqlite")

CHECKPOINT_FRAMES: Final = 16_000
"""Frames (pages of 4 KiB, so 64 MB) from which the WAL is moved. A page that several commits change
is moved once: at 400,000 cells a cell costs 9.9 KB of writes, and 11.3 KB with 4,000 frames."""

STEP_FRAMES: Final = 1_000
"""Frames that a writer moves itself at most: 4 MB in one sync, well below the 250 ms that a put may
wait on a quiet disk. Also how far the WAL grows between two tries that somebody stops."""

FULL_FRAMES: Final = 32_000
"""Frames (128 MB) from which writers wait for the disk, and a WAL that cannot be emptied is
reported."""

WAIT_S: Final = 0.15
"""How long a commit waits for the thread at most. With a step of its own it stays below 250 ms."""


class _Moved(NamedTuple):
    """The outcome of a checkpoint. ``busy``: another process is at one, nothing else is known."""

    busy: bool
    frames: int
    moved: int


class Checkpoints:
    """Of one file, which is open. ``connect`` opens another connection to it; ``using`` keeps the
    file from being closed meanwhile."""

    def __init__(
        self,
        path: Path,
        connect: Callable[[], sqlite3.Connection],
        using: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._path = path
        self._connect = connect
        self._using = using
        self._wal = Wal(path)
        self._checkpointer: sqlite3.Connection | None = None
        self._pin: sqlite3.Connection | None = None
        self._round = b""
        self._moved = 0
        self._next_try = 0
        self._reported = FULL_FRAMES
        self._idle = threading.Event()
        self._idle.set()

    def after_commit(self, writer: sqlite3.Connection) -> None:
        """Moves the frames that are due. The caller has the writer to itself, between two
        transactions. Raises nothing: the caller's transaction is committed."""
        try:
            if self._wal.has_frames(max(CHECKPOINT_FRAMES, self._next_try)):
                self._move(writer)
            elif self._next_try and self._idle.is_set() and self._wal.round() != self._round:
                self._begin_round()
        except Exception as error:
            _log.warning("%s: no checkpoint just now: %s", self._path, error)

    def close(self) -> None:
        """Of a file that nothing uses any more, the thread included."""
        for connection in (self._checkpointer, self._pin):
            if connection is not None:
                connection.close()
        self._wal.close()

    def _begin_round(self) -> None:
        self._round = self._wal.round()
        self._moved = self._next_try = 0
        self._reported = FULL_FRAMES

    def _move(self, writer: sqlite3.Connection) -> None:
        if self._idle.is_set():
            if self._wal.round() != self._round:
                self._begin_round()
            if not self._is_small():
                self._start()
        if self._idle.wait(WAIT_S if self._wal.has_frames(FULL_FRAMES) else 0) and self._is_small():
            self._move_between(writer)

    def _is_small(self) -> bool:
        """Whether a writer may move the rest."""
        return self._wal.frames() - self._moved <= STEP_FRAMES

    def _start(self) -> None:
        self._idle.clear()
        try:
            threading.Thread(target=self._move_beside, name="checkpoint").start()
        except BaseException:
            self._idle.set()
            raise

    def _move_between(self, writer: sqlite3.Connection) -> None:
        checkpointer = self._opened()
        try:
            writer.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                return  # another process writes just now
            raise
        try:
            failpoint("sqlite.checkpoint.inside")
            self._note(_checkpoint(checkpointer), STEP_FRAMES // 4)
        finally:
            with suppress(sqlite3.Error):  # tried again before the next transaction
                writer.rollback()

    def _move_beside(self) -> None:
        try:
            with self._using():
                committed = -1
                while True:
                    checkpointer = self._opened()
                    with self._pinned():
                        failpoint("sqlite.checkpoint.beside")
                        done = _checkpoint(checkpointer)
                        self._note(done, STEP_FRAMES)
                    if done.busy or self._wal.frames() - done.moved <= STEP_FRAMES // 2:
                        return
                    if done.moved < committed:
                        self._report_stopped()  # not by our pin, which began behind them
                        return
                    if done.frames == committed:
                        return  # later frames belong to a commit that is under way
                    committed = done.frames
        except Exception as error:
            _log.warning("%s: no checkpoint just now: %s", self._path, error)
        finally:
            self._idle.set()

    def _note(self, done: _Moved, frames_to_next_try: int) -> None:
        if not done.busy:
            self._moved = done.moved
        if done.busy or done.moved < done.frames:
            self._next_try = self._wal.frames() + frames_to_next_try

    def _report_stopped(self) -> None:
        frames = self._wal.frames()
        if frames >= self._reported:
            self._reported = 2 * frames
            _log.warning("%s", stopped(self._path, self._wal.used_bytes()))

    def _opened(self) -> sqlite3.Connection:
        if self._checkpointer is None:
            self._checkpointer = self._connect()
        return self._checkpointer

    @contextmanager
    def _pinned(self) -> Iterator[None]:
        """No commit starts the WAL again inside; see the module."""
        if self._pin is None:
            self._pin = self._connect()
        self._pin.execute("BEGIN")
        try:
            self._pin.execute("SELECT 1 FROM sqlite_schema").fetchall()
            yield
        finally:
            self._pin.rollback()


def _checkpoint(connection: sqlite3.Connection) -> _Moved:
    [(busy, frames, moved)] = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    return _Moved(bool(busy), frames, moved)


def stopped(path: Path, wal_bytes: int) -> str:
    """Why a WAL of so many bytes is not emptied."""
    others = ", ".join(str(pid) for pid in readers(path) if pid != os.getpid())
    who = f"process {others}" if others else "a thread of this process"
    return (
        f"{path}-wal holds {wal_bytes >> 20} MiB and grows: {who} reads an old snapshot of the"
        " store. The log is emptied when that read ends; end the process if it hangs"
    )
