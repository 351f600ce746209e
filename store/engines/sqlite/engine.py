"""The embedded engine: one SQLite file, all shards in it. Promises E1–E28 of
:mod:`cellfeed.store.engines.contract.engine`.

SQLite has one writer at a time per file. ``BEGIN IMMEDIATE`` takes that lock before anything is
read and holds it to the commit: it is the lock on the shard counters (E2), and it holds between
processes too.

Crash points of a put: before the commit nothing of it is there, and the counter is where it was.
The commit is one synced append to the WAL, so after it everything is there. A process that dies
between the commit and its answer leaves cells that a retry finds (``exists``, the same id).

Crash points of a step of a trim are in :mod:`cellfeed.store.engines.sqlite.trim`, those of a step
of an erasure in :mod:`cellfeed.store.engines.sqlite.erase`.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from cellfeed.store.cells import known_dictionaries
from cellfeed.store.cells.body_codec import DEFAULT_CODEC, dictionaries_named, encode_cells
from cellfeed.store.cells.cell import NewCell, PutResult, StoredCell, Triple
from cellfeed.store.cells.sharding import check_shard, check_shard_count, shard_of, shards_of
from cellfeed.store.engines.contract.dictionaries import DictionariesOfPuts, replacement_retired
from cellfeed.store.engines.contract.engine import StateTable
from cellfeed.store.engines.contract.read_bounds import decoded
from cellfeed.store.engines.contract.values import (
    ErasedStep,
    Head,
    HeadChanges,
    LocatedCell,
    LogRange,
    NamedBodies,
    Replica,
)
from cellfeed.store.engines.sqlite import key_reads, log
from cellfeed.store.engines.sqlite.cells import (
    counter_of,
    replace_body,
)
from cellfeed.store.engines.sqlite.dictionaries import SqliteDictionaries, are_in_use
from cellfeed.store.engines.sqlite.erase import erase_step
from cellfeed.store.engines.sqlite.files import SqliteFile, sqlite_error
from cellfeed.store.engines.sqlite.heads import Mark, changed_heads, heads_of
from cellfeed.store.engines.sqlite.index import SqliteIndexes
from cellfeed.store.engines.sqlite.instance_lock import SharedLock
from cellfeed.store.engines.sqlite.left import remove_left
from cellfeed.store.engines.sqlite.open import (
    INDEX_FILE,
    STATE_FILE,
    history_of,
    open_cells,
    open_other,
    renew_index,
)
from cellfeed.store.engines.sqlite.put import PutTransaction
from cellfeed.store.engines.sqlite.state import SqliteState
from cellfeed.store.engines.sqlite.trim import trim_step
from cellfeed.store.errors import DataDamaged, Trimmed
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.histories import History
from cellfeed.store.limits import (
    ERASE_STEP_CELLS,
    READ_KEYS_MAX,
    SCAN_DECODED_BYTES_MAX,
    TRIM_STEP_CELLS,
)

declare("sqlite.put.before_commit", "sqlite.put.after_commit")
declare("sqlite.trim.before_commit", "sqlite.trim.after_commit")
declare("sqlite.erase.before_commit", "sqlite.erase.after_commit")


class SqliteEngine:
    """See the module. ``directory`` holds the files; they are made where the store is new
    (:mod:`cellfeed.store.engines.sqlite.open`).

    Raises ProtectData when the files belong to another datastore, shard count or schema version
    (E13), when one is lost, or of another history; StorageUnavailable while the store is being
    restored or scrubbed.
    """

    def __init__(
        self,
        directory: Path,
        datastore: str,
        shards: int,
        *,
        codec: int = DEFAULT_CODEC,
        clock_us: Callable[[], int] | None = None,
    ) -> None:
        self._datastore = datastore
        self._shards = check_shard_count(shards)
        self._codec = codec
        self._clock_us = clock_us or (lambda: time.time_ns() // 1000)
        self._instance = SharedLock(directory)
        with ExitStack() as opened:
            opened.callback(self._instance.close)
            self._file = open_cells(directory, datastore, self._shards)
            opened.callback(self._file.close)
            self._history = history_of(self._file)
            self._dictionaries = SqliteDictionaries(self._file)
            self._dictionaries.check()
            self._state_file = open_other(self._file, STATE_FILE)
            opened.callback(self._state_file.close)
            self._state = SqliteState(self._state_file)
            # data_version counts the commits of other connections: this one only ever asks.
            self._watcher = self._file.another()
            opened.pop_all()
        self._dictionaries_of_puts = DictionariesOfPuts(self._dictionaries)
        known_dictionaries.add_source(self._dictionaries.find)
        self._columns_seen: set[str] = set()
        self._index_lock = threading.Lock()
        self._index_file: SqliteFile | None = None
        self._indexes: SqliteIndexes | None = None
        self._watcher_lock = threading.Lock()

    @property
    def datastore(self) -> str:
        return self._datastore

    @property
    def shards(self) -> int:
        return self._shards

    @property
    def history(self) -> History:
        return self._history

    @property
    def state(self) -> StateTable:
        return self._state

    @property
    def dictionaries(self) -> SqliteDictionaries:
        return self._dictionaries

    # --- writing ----------------------------------------------------------------------------------

    @property
    def indexes(self) -> SqliteIndexes:
        """Made with the first index that is looked at. Raises ProtectData where its file is
        lost."""
        with self._index_lock:
            if self._indexes is None:
                self._index_file = open_other(self._file, INDEX_FILE)
                self._indexes = SqliteIndexes(self._file, self._index_file, self.shards)
            return self._indexes

    def renew_indexes(self) -> None:
        """Puts an empty file in the place of the one with the entries of indexes, which may be lost
        or damaged. Every version is to be dropped in the catalog before."""
        with self._index_lock:
            if self._index_file is not None:
                self._index_file.close()
            self._index_file = self._indexes = None
            renew_index(self._file)

    def commit_group(self, shard: int) -> str:
        check_shard(shard, self._shards)
        return ""

    def put(self, cells: Sequence[NewCell]) -> list[PutResult]:
        shards = shards_of([cell.row_key for cell in cells], self._shards)
        while (results := self._put(cells, shards)) is None:
            self._dictionaries_of_puts.forget()
        return results

    def _put(self, cells: Sequence[NewCell], shards: Sequence[int]) -> list[PutResult] | None:
        """None, nothing written, where a dictionary was retired since this process looked."""
        dictionaries = (
            self._dictionaries_of_puts.under(None) if self._codec == DEFAULT_CODEC else {}
        )
        bodies = encode_cells(cells, dictionaries, self._codec)
        new_columns = {cell.column_name for cell in cells} - self._columns_seen
        taken = {
            dictionaries[cell.column_name].dictionary.dictionary_id
            for cell in cells
            if cell.column_name in dictionaries
        }
        with self._file.write() as connection:
            if taken and not are_in_use(connection, taken):
                return None
            results = PutTransaction(connection, self._clock_us()).run(cells, shards, bodies)
            connection.executemany(
                "INSERT OR IGNORE INTO column_seen VALUES (?)", [(name,) for name in new_columns]
            )
            failpoint("sqlite.put.before_commit")
        self._columns_seen |= new_columns
        failpoint("sqlite.put.after_commit")
        return results

    # --- reading ----------------------------------------------------------------------------------

    def get(
        self, triples: Sequence[Triple], read_from: Replica = Replica.MASTER
    ) -> list[LocatedCell | None]:
        with self._file.snapshot() as connection:
            return key_reads.get(connection, triples)

    def latest(
        self, keys: Sequence[tuple[bytes, str]], read_from: Replica = Replica.MASTER
    ) -> list[LocatedCell | None]:
        with self._file.snapshot() as connection:
            return key_reads.latest(connection, keys)

    def row(
        self, row_keys: Sequence[bytes], read_from: Replica = Replica.MASTER, after_column: str = ""
    ) -> list[list[LocatedCell]]:
        with self._file.snapshot() as connection:
            return key_reads.row(connection, row_keys, after_column)

    def row_cells(
        self, row_key: bytes, after: int = -1, limit: int = READ_KEYS_MAX
    ) -> list[StoredCell]:
        shard = shard_of(row_key, self._shards)
        with self._file.read() as connection:
            return key_reads.row_cells(connection, shard, row_key, after, limit)

    def scan(self, shard: int, location: int, limit: int) -> list[StoredCell]:
        check_shard(shard, self._shards)
        with self._file.read() as connection:
            return log.scan(connection, shard, location, limit)

    def scan_many(self, ranges: Sequence[LogRange]) -> list[list[StoredCell]]:
        found: list[list[StoredCell]] = []
        decoded_bytes = 0
        for each in ranges:
            found.append(
                self.scan(
                    *(
                        each
                        if decoded_bytes < SCAN_DECODED_BYTES_MAX
                        else each._replace(limit=min(each.limit, 1))
                    )
                )
            )
            decoded_bytes += decoded(found[-1])
        return found

    def superseded(
        self, shard: int, start: int, end: int, log_start: int, watermark: int
    ) -> set[int]:
        check_shard(shard, self._shards)
        with self._file.read() as connection:
            return log.superseded(connection, shard, start, end, log_start, watermark)

    def locate(self, shard: int, created_at_us: int) -> int:
        check_shard(shard, self._shards)
        with self._file.snapshot() as connection:
            return log.locate(connection, shard, created_at_us)

    def acknowledged_ends(self) -> dict[int, tuple[int, int]]:
        return {
            shard: (head.leader_epoch, head.next_added_id) for shard, head in self.heads().items()
        }

    def heads(self, shards: Sequence[int] | None = None) -> dict[int, Head]:
        self._look_at_other_files()
        wanted = (
            None
            if shards is None
            else dict.fromkeys(check_shard(shard, self._shards) for shard in shards)
        )
        with self._file.snapshot() as connection:
            return self._whole(
                heads_of(connection, wanted), self._shards if wanted is None else len(wanted)
            )

    def heads_since(self, mark: object | None) -> HeadChanges:
        """As the contract's. The token is read before the heads: a commit in between changes the
        token of the next look, which finds its heads once more."""
        token, before = self.change_token(), mark if isinstance(mark, Mark) else None
        self._look_at_other_files()
        if before is not None and before.token == token:
            return HeadChanges({}, before)
        with self._file.snapshot() as connection:
            changes = changed_heads(connection, self._shards, token, before)
        if before is None:
            self._whole(changes.heads, self._shards)
        return changes

    def _whole(self, heads: dict[int, Head], count: int) -> dict[int, Head]:
        if len(heads) != count:
            raise DataDamaged(
                f"{self._file.path} has lost counters of shards: restore it from a backup"
            )
        return heads

    def _look_at_other_files(self) -> None:
        """A reader of the heads, health among them, learns of any file that was replaced."""
        for file in (self._state_file, self._index_file):
            if file is not None:
                file.look()

    def trim_limits(self, shards: Sequence[int]) -> dict[int, int]:
        return {shard: head.watermark for shard, head in self.heads(shards).items()}

    def trim(self, shard: int, below: int, cells_max: int = TRIM_STEP_CELLS) -> int:
        check_shard(shard, self._shards)
        with self._file.write() as connection:
            start = trim_step(connection, shard, below, cells_max)
            failpoint("sqlite.trim.before_commit")
        failpoint("sqlite.trim.after_commit")
        return start

    def erase(self, row_key: bytes, cells_max: int = ERASE_STEP_CELLS) -> ErasedStep:
        shard = shard_of(row_key, self._shards)
        with self._file.write() as connection:
            step = erase_step(connection, row_key, shard, cells_max, self._clock_us())
            failpoint("sqlite.erase.before_commit")
        failpoint("sqlite.erase.after_commit")
        if step.done:
            remove_left(self._file.path.parent)
        return step

    def settle_puts(self, shard: int) -> int:
        check_shard(shard, self._shards)
        with self._file.write() as connection:
            [next_added_id] = counter_of(connection, shard, "next_added_id")
        return next_added_id

    def bodies_named(self, shard: int, prefix: bytes, location: int, limit: int) -> NamedBodies:
        try:
            cells = self.scan(shard, location, limit)
        except Trimmed:
            location = self.heads([shard])[shard].log_start
            cells = self.scan(shard, location, limit)
        named = [cell for cell in cells if cell.body.startswith(prefix)]
        return NamedBodies(named, cells[-1].added_id + 1 if cells else None)

    def replace_bodies(self, shard: int, cells: Sequence[tuple[StoredCell, bytes]]) -> int:
        """As the contract's; each body is read back."""
        with self._file.write() as connection:
            if not are_in_use(connection, dictionaries_named(body for _, body in cells)):
                raise replacement_retired(self._file.path, shard)
            return sum(replace_body(connection, shard, cell, body) for cell, body in cells)

    def bodies_with(self, prefix: bytes) -> dict[str, int]:
        sql = "SELECT count(*) FROM cell WHERE substr(body, 1, ?) = ?"
        with self._file.read() as connection:
            [(count,)] = connection.execute(sql, (len(prefix), prefix)).fetchall()
        return {str(self._file.path): int(count)} if count else {}

    def leader_epochs(self, shard: int) -> list[tuple[int, int]]:
        check_shard(shard, self._shards)
        sql = (
            "SELECT leader_epoch, first_added_id FROM leader_epoch WHERE shard = ? ORDER BY"
            " leader_epoch"
        )
        with self._file.read() as connection:
            return connection.execute(sql, (shard,)).fetchall()

    def columns(self) -> list[str]:
        with self._file.read() as connection:
            return [
                name for (name,) in connection.execute("SELECT name FROM column_seen ORDER BY name")
            ]

    def change_token(self) -> int:
        self._file.check_process()
        self._file.look()  # in a file that was replaced nothing changes any more
        try:
            with self._watcher_lock:
                [(token,)] = self._watcher.execute("PRAGMA data_version").fetchall()
        except sqlite3.Error as error:
            raise sqlite_error(self._file.path, "read failed: ", error) from error
        return int(token)

    def close(self) -> None:
        known_dictionaries.remove_source(self._dictionaries.find)
        if self._file.is_the_parents:
            return
        self._file.close()
        self._state.close()
        with self._index_lock:
            if self._index_file is not None:
                self._index_file.close()
        with self._watcher_lock:
            self._watcher.close()
        self._instance.close()
