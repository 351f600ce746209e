"""The embedded engine: one SQLite file, all shards in it. Promises E1–E28 of
:mod:`cellfeed.store.engines.contract.engine`.

SQLite has one writer at a time per file. ``BEGIN IMMEDIATE`` takes that lock before anything is
read and holds it to the commit: it is the lock on the shard counters (E2), and it holds between
processes too.

Crash points are in the modules of the steps: of a put in :mod:`cellfeed.store.engines.sqlite.puts`,
of a trim in :mod:`cellfeed.store.engines.sqlite.trim`, of an erasure in
:mod:`cellfeed.store.engines.sqlite.erase`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from cellfeed.store.cells import known_dictionaries
from cellfeed.store.cells.body_codec import DEFAULT_CODEC
from cellfeed.store.cells.cell import NewCell, StoredCell, Triple
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.cells.sharding import check_shard, check_shard_count, shard_of, shards_of
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.contract.values import (
    ErasedStep,
    Head,
    HeadChanges,
    LocatedCell,
    LogRange,
    NamedBodies,
    Replica,
)
from cellfeed.store.engines.sqlite import key_reads, log, rewrite
from cellfeed.store.engines.sqlite.dictionaries import SqliteDictionaries
from cellfeed.store.engines.sqlite.erase import erase
from cellfeed.store.engines.sqlite.heads import SqliteHeads, leader_epochs_of
from cellfeed.store.engines.sqlite.index import SqliteIndexes
from cellfeed.store.engines.sqlite.index_file import IndexFile
from cellfeed.store.engines.sqlite.instance_lock import SharedLock
from cellfeed.store.engines.sqlite.open import history_of, open_cells, open_other
from cellfeed.store.engines.sqlite.puts import SqlitePuts
from cellfeed.store.engines.sqlite.state import SqliteState
from cellfeed.store.engines.sqlite.store_files import STATE_FILE
from cellfeed.store.engines.sqlite.trim import trim
from cellfeed.store.histories import History
from cellfeed.store.limits import (
    ERASE_STEP_CELLS,
    READ_KEYS_MAX,
    TRIM_STEP_CELLS,
)


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
            self._heads = SqliteHeads(self._file, self._shards)
            opened.pop_all()
        self._puts = SqlitePuts(self._file, self._dictionaries, codec, self._clock_us)
        self._index_file = IndexFile(self._file, self._shards)
        known_dictionaries.add_source(self._dictionaries.find)

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

    @property
    def indexes(self) -> SqliteIndexes:
        """Made with the first index that is looked at. Raises ProtectData where its file is
        lost."""
        return self._index_file.indexes()

    def renew_indexes(self) -> None:
        """Puts an empty file in the place of the one with the entries of indexes, which may be lost
        or damaged. Every version is to be dropped in the catalog before."""
        self._index_file.renew()

    def commit_group(self, shard: int) -> str:
        check_shard(shard, self._shards)
        return ""

    def put(self, cells: Sequence[NewCell]) -> list[PutResult]:
        return self._puts.run(cells, shards_of([cell.row_key for cell in cells], self._shards))

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
        for each in ranges:
            check_shard(each.shard, self._shards)
        return log.scan_many(self._file, ranges)

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
        return self._heads.heads(shards)

    def heads_since(self, mark: object | None) -> HeadChanges:
        token = self.change_token()
        self._look_at_other_files()
        return self._heads.since(mark, token)

    def _look_at_other_files(self) -> None:
        """A reader of the heads, health among them, learns of any file that was replaced."""
        for file in (self._state_file, self._index_file.opened):
            if file is not None:
                file.look()

    def trim_limits(self, shards: Sequence[int]) -> dict[int, int]:
        return {shard: head.watermark for shard, head in self.heads(shards).items()}

    def trim(self, shard: int, below: int, cells_max: int = TRIM_STEP_CELLS) -> int:
        check_shard(shard, self._shards)
        return trim(self._file, shard, below, cells_max)

    def erase(self, row_key: bytes, cells_max: int = ERASE_STEP_CELLS) -> ErasedStep:
        shard = shard_of(row_key, self._shards)
        return erase(self._file, row_key, shard, cells_max, self._clock_us())

    def settle_puts(self, shard: int) -> int:
        check_shard(shard, self._shards)
        return rewrite.settle_puts(self._file, shard)

    def bodies_named(self, shard: int, prefix: bytes, location: int, limit: int) -> NamedBodies:
        check_shard(shard, self._shards)
        return rewrite.bodies_named(self._file, shard, prefix, location, limit)

    def replace_bodies(self, shard: int, cells: Sequence[tuple[StoredCell, bytes]]) -> int:
        return rewrite.replace_bodies(self._file, shard, cells)

    def bodies_with(self, prefix: bytes) -> dict[str, int]:
        return rewrite.bodies_with(self._file, prefix)

    def leader_epochs(self, shard: int) -> list[tuple[int, int]]:
        check_shard(shard, self._shards)
        with self._file.read() as connection:
            return leader_epochs_of(connection, shard)

    def columns(self) -> list[str]:
        with self._file.read() as connection:
            return [
                name for (name,) in connection.execute("SELECT name FROM column_seen ORDER BY name")
            ]

    def change_token(self) -> int:
        return self._heads.change_token()

    def close(self) -> None:
        known_dictionaries.remove_source(self._dictionaries.find)
        if self._file.is_the_parents:
            return
        self._file.close()
        self._state.close()
        self._index_file.close()
        self._heads.close()
        self._instance.close()
