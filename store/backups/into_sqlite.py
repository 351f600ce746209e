"""Restores into an embedded datastore: a folder beside its place, renamed to it at the end, so
nobody can open it before it is whole.

Crash points: before the rename the place is as empty as it was, and the next restore starts over;
the rename is one step; after it everything is there. A restore holds the instance's lock alone: it
meets no other restore, and no process that still has the files open that were moved away to make
room. The restored store is a new history, with an identity of its own; its parent is the history of
the backup, whose origin it keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.restore_plan import Plan
from cellfeed.store.backups.restore_target import LogReader
from cellfeed.store.backups.synced import sync_folder
from cellfeed.store.cells.body_codec import ERASED_BODY
from cellfeed.store.cells.cell import ERASED_COLUMN, StoredCell
from cellfeed.store.engines.sqlite.cells import INSERT_CELL, erase_bodies, row_of
from cellfeed.store.engines.sqlite.dictionaries import SqliteDictionaries
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.engines.sqlite.files import SqliteFile
from cellfeed.store.engines.sqlite.instance_lock import exclusive_lock, lock_path
from cellfeed.store.engines.sqlite.left import remove_staged, staged_restore
from cellfeed.store.engines.sqlite.open import open_cells, open_other
from cellfeed.store.engines.sqlite.state import SqliteState
from cellfeed.store.engines.sqlite.store_files import STATE_FILE
from cellfeed.store.errors import ProtectData
from cellfeed.store.failpoints import declare, failpoint

declare("sqlite.restore.before_rename", "sqlite.restore.after_rename")

_STATE_ENTRIES = 1_000
"""Entries of one commit of the state table."""


class SqliteTarget:
    """:class:`cellfeed.store.backups.restore_target.Target`. ``place``: the folder that the
    datastore is to have. Use as a context: it holds the lock."""

    def __init__(self, place: Path, datastore: str, shards: int) -> None:
        self._place = place
        self._staged = staged_restore(place)
        self._datastore, self._shards = datastore, shards
        self._locks = ExitStack()
        self._file: SqliteFile | None = None

    def __enter__(self) -> SqliteTarget:
        self._locks.enter_context(exclusive_lock(self._place, "a restore"))
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._file is not None:
            self._file.close()
        self._locks.close()

    def begun_epoch(self, backup: Backup) -> None:
        del backup  # a restore that was killed starts over

    def begun_history(self, backup: Backup) -> str:
        del backup
        return ""

    def begin(self, plan: Plan) -> None:
        if self._place.exists():
            raise ProtectData(
                f"nothing restored: {self._place} is there already, and a backup goes into empty"
                " storage only. Move it away, or name another run directory with --into"
            )
        remove_staged(self._staged)
        if self._staged.is_symlink() or self._staged.exists():
            raise ProtectData(
                f"nothing restored: {self._staged} is in the way, and no restore has made it. Move"
                " it elsewhere"
            )
        self._file = open_cells(self._staged, self._datastore, self._shards, parent=plan.parent)
        dictionaries = SqliteDictionaries(self._file)
        by_digest = {dictionary.sha256.hex(): dictionary for dictionary in plan.dictionaries}
        for dictionary in plan.dictionaries:
            dictionaries.add(dictionary)
        for turn in sorted(plan.turns, key=lambda each: each.turn):
            dictionaries.use(by_digest[turn.sha256], turn.turn)

    def loaded(self, shard: int) -> int:
        del shard
        return 0  # a restore that was killed starts over

    def is_open(self, shard: int) -> bool:
        del shard
        return False  # all of it is opened in one step

    def not_erased(self, plan: Plan) -> list[bytes]:
        del plan
        return []

    def load(self, shard: int, cells: Sequence[StoredCell]) -> None:
        with self._cells.write() as connection:
            connection.executemany(INSERT_CELL, [row_of(shard, cell) for cell in cells])
            if erasures := sum(cell.column_name == ERASED_COLUMN for cell in cells):
                connection.execute(
                    "UPDATE shard_counter SET erasures = erasures + ? WHERE shard = ?",
                    (erasures, shard),
                )

    def complete(self, plan: Plan) -> None:
        for log in plan.logs.values():
            if log.added:
                self.load(log.shard, log.added)
        with self._cells.write() as connection:
            connection.executemany(
                "UPDATE shard_counter SET log_start = ?, next_added_id = ?, leader_epoch = ?,"
                " last_created_at_us = ? WHERE shard = ?",
                [
                    (
                        log.log_start,
                        log.next_added_id,
                        plan.epoch,
                        log.last_created_at_us,
                        log.shard,
                    )
                    for log in plan.logs.values()
                ],
            )
            connection.execute("DELETE FROM leader_epoch")
            connection.executemany(
                "INSERT INTO leader_epoch VALUES (?, ?, ?)",
                [(log.shard, *epoch) for log in plan.logs.values() for epoch in log.epochs],
            )
            connection.executemany(
                "INSERT INTO column_seen VALUES (?)", [(name,) for name in plan.columns]
            )
        state = SqliteState(open_other(self._cells, STATE_FILE))
        try:
            state.begin_at(plan.state_revision)
            for start in range(0, len(plan.state), _STATE_ENTRIES):
                state.commit(dict(plan.state[start : start + _STATE_ENTRIES]))
        finally:
            state.close()

    @contextmanager
    def reader(self) -> Iterator[LogReader]:
        engine = SqliteEngine(self._staged, self._datastore, self._shards)
        try:
            yield engine
        finally:
            engine.close()
            lock_path(self._staged).unlink()

    def open(self) -> None:
        with self._cells.write() as connection:
            # A piece of the backup may have bodies from before their row was erased, and a later
            # one marks the erasure.
            rows = "SELECT row_key FROM cell WHERE column_name = ?"
            erase_bodies(
                connection, f"body <> ? AND row_key IN ({rows})", [(ERASED_BODY, ERASED_COLUMN)]
            )
        self._cells.close()
        self._file = None
        sync_folder(self._staged)
        failpoint("sqlite.restore.before_rename")
        try:
            self._staged.rename(self._place)
        except OSError as error:
            raise ProtectData(
                f"nothing restored: somebody has made {self._place} meanwhile ({error.strerror}):"
                " move it away, and run it again"
            ) from None
        sync_folder(self._place.parent)
        failpoint("sqlite.restore.after_rename")

    @property
    def _cells(self) -> SqliteFile:
        assert self._file is not None, "begin() comes first"  # noqa: S101
        return self._file
