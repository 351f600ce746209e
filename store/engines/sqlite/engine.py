"""The embedded engine: one SQLite file, all shards in it. Promises E1–E28 of
:mod:`cellfeed.store.engines.contract.engine`.

SQLite has one writer at a time per file. ``BEGIN IMMEDIATE`` takes that lock before anything is
read and holds it to the commit: it is the lock on the shard counters (E2), and it holds between
processes too.

Crash points of a put: before the commit nothing of it is there, and the counter is where it was.
The commit is one synced append to the WAL, so after it everything is there. A process that dies
between the commit and its answer leaves cells that a retry finds (``exists``, the same id).

Crash points of a step of a trim: before its commit the log is as it was; after it the log starts
where the counter says, and a trim that is run again resumes there. Those of a step of an erasure
are in :mod:`cellfeed.store.engines.sqlite.erase`.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from cellfeed.store.cells import known_dictionaries
from cellfeed.store.cells.body_codec import DEFAULT_CODEC, dictionaries_named, encode_cells
from cellfeed.store.cells.cell import NewCell, Outcome, PutResult, StoredCell, Triple
from cellfeed.store.cells.checksum import pack_key
from cellfeed.store.cells.sharding import check_shard, check_shard_count, shard_of, shards_of
from cellfeed.store.engines.contract.dictionaries import DictionariesOfPuts, replacement_retired
from cellfeed.store.engines.contract.engine import StateTable
from cellfeed.store.engines.contract.log_start import check_scan, check_trim, step_end
from cellfeed.store.engines.contract.read_bounds import Page, decoded, within_scan
from cellfeed.store.engines.contract.repeated_cells import (
    StoredTriple,
    not_compared,
    outcomes_before,
    repeated,
    without_erased,
)
from cellfeed.store.engines.contract.scan_gaps import has_gap, refuse_gap
from cellfeed.store.engines.contract.values import (
    ErasedStep,
    Head,
    HeadChanges,
    LocatedCell,
    LogRange,
    NamedBodies,
    Replica,
)
from cellfeed.store.engines.sqlite.cells import (
    ADDED_ID_BITS,
    CELL,
    CURE,
    INSERT_CELL,
    counter_of,
    position_of,
    replace_body,
    stored_cell,
    stored_cells,
)
from cellfeed.store.engines.sqlite.dictionaries import SqliteDictionaries, are_in_use
from cellfeed.store.engines.sqlite.erase import erase_step, erased_among
from cellfeed.store.engines.sqlite.files import SqliteFile, sqlite_error
from cellfeed.store.engines.sqlite.heads import Mark, changed_heads, heads_of
from cellfeed.store.engines.sqlite.index import SqliteIndexes
from cellfeed.store.engines.sqlite.instance_lock import SharedLock
from cellfeed.store.engines.sqlite.keys import (
    Key,
    behind_latest,
    refuse_hidden,
    refuse_hidden_of_row,
)
from cellfeed.store.engines.sqlite.left import remove_left
from cellfeed.store.engines.sqlite.open import (
    INDEX_FILE,
    STATE_FILE,
    history_of,
    open_cells,
    open_other,
    renew_index,
)
from cellfeed.store.engines.sqlite.state import SqliteState
from cellfeed.store.errors import DataDamaged, Trimmed
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.histories import History
from cellfeed.store.limits import (
    ADDED_ID_MAX,
    ERASE_STEP_CELLS,
    READ_KEYS_MAX,
    SCAN_BYTES_MAX,
    SCAN_DECODED_BYTES_MAX,
    TRIM_STEP_CELLS,
)

declare(
    "sqlite.put.before_insert",
    "sqlite.put.before_counter",
    "sqlite.put.before_commit",
    "sqlite.put.after_commit",
)
declare("sqlite.trim.before_delete", "sqlite.trim.before_commit", "sqlite.trim.after_commit")
declare("sqlite.erase.before_commit", "sqlite.erase.after_commit")

_SCAN_STEP: Final = 500
_BODY: Final = 5
"""Where the body stands in the row of a ``CELL``."""


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
        """Puts an empty file in the place of that with the entries of indexes, whatever became of
        it. Every version is to be dropped in the catalog before."""
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
            results = _PutTransaction(connection, self._clock_us()).run(cells, shards, bodies)
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
            return _page(_found(connection, triple) for triple in triples)

    def latest(
        self, keys: Sequence[tuple[bytes, str]], read_from: Replica = Replica.MASTER
    ) -> list[LocatedCell | None]:
        sql = f"SELECT position, {CELL} FROM cell WHERE row_key = ? AND column_name = ? ORDER BY ref_key DESC LIMIT 1"  # noqa: E501, S608
        with self._file.snapshot() as connection:
            return _page(
                _first_sure(connection, connection.execute(sql, key), behind_latest(*key))
                for key in keys
            )

    def row(
        self, row_keys: Sequence[bytes], read_from: Replica = Replica.MASTER, after_column: str = ""
    ) -> list[list[LocatedCell]]:
        # With max() as the only aggregate SQLite takes the other columns from the row that holds
        # the maximum.
        sql = f"SELECT position, {CELL}, max(ref_key) FROM cell WHERE row_key = ? AND column_name > ? GROUP BY column_name ORDER BY column_name"  # noqa: E501, S608
        rows: list[list[LocatedCell]] = []
        page = Page()
        with self._file.snapshot() as connection:
            for row_key in row_keys:
                refuse_hidden_of_row(connection, row_key)
                cursor = connection.execute(sql, (row_key, "" if rows else after_column))
                rows.append([])
                for row in cursor:
                    rows[-1].append(_located(row[:-1]))
                    page.take([rows[-1][-1].cell.body])
                    if page.is_full:
                        cursor.close()
                        return rows
        return rows

    def row_cells(
        self, row_key: bytes, after: int = -1, limit: int = READ_KEYS_MAX
    ) -> list[StoredCell]:
        shard = shard_of(row_key, self._shards)
        # The plus keeps SQLite from walking through the shard's positions: the row's own cells are
        # found by its key.
        sql = (
            f"SELECT {CELL} FROM cell WHERE row_key = ? AND +position > ? ORDER BY position LIMIT ?"  # noqa: S608
        )
        with self._file.read() as connection:
            refuse_hidden_of_row(connection, row_key)
            return stored_cells(
                shard,
                connection.execute(sql, (row_key, position_of(shard, 0) + after, limit)).fetchall(),
            )

    def scan(self, shard: int, location: int, limit: int) -> list[StoredCell]:
        check_shard(shard, self._shards)
        with self._file.read() as connection:
            cells, ended = _scanned(connection, shard, location, limit)
            if not has_gap(location, cells) and not ended:
                return cells
            start, end = counter_of(connection, shard, "log_start, next_added_id")
            check_scan(shard, location, cells, lambda: start)
            if has_gap(location, cells) or (ended and location + len(cells) < end):
                # Cells may have been put, or trimmed, between these statements: the same again, of
                # one moment.
                connection.execute("BEGIN")
                start, end = counter_of(connection, shard, "log_start, next_added_id")
                cells, ended = _scanned(connection, shard, location, limit)
                check_scan(shard, location, cells, lambda: start)
                refuse_gap(shard, location, cells, end if ended else location, CURE)
        return cells

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
        first = position_of(shard, 0)
        sql = (
            "SELECT older.position FROM cell AS older WHERE older.position >= ? AND older.position"
            " < ? AND EXISTS ( SELECT 1 FROM cell AS newer WHERE newer.row_key = older.row_key AND"
            " newer.column_name = older.column_name AND newer.ref_key > older.ref_key AND"
            " newer.position >= ? AND newer.position < ?)"
        )
        bounds = (first + start, first + end, first + log_start, first + watermark)
        with self._file.read() as connection:
            return {position - first for (position,) in connection.execute(sql, bounds)}

    def locate(self, shard: int, created_at_us: int) -> int:
        check_shard(shard, self._shards)
        with self._file.snapshot() as connection:
            low, high = counter_of(connection, shard, "log_start, next_added_id")
            # created_at never goes back within a shard (E4), so a binary search by id finds the
            # moment without an index on it.
            while low < high:
                middle = (low + high) // 2
                sql = (
                    "SELECT position, created_at_us FROM cell WHERE position BETWEEN ? AND ? ORDER"
                    " BY position LIMIT 1"
                )
                row = connection.execute(
                    sql, (position_of(shard, middle), position_of(shard, high - 1))
                ).fetchone()
                if row is None or row[1] >= created_at_us:
                    high = middle
                else:
                    low = (row[0] & ADDED_ID_MAX) + 1
        return low

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
            start, end = counter_of(connection, shard, "log_start, next_added_id")
            check_trim(shard, below, end)
            sql = (
                "SELECT position, length(body) FROM cell WHERE position >= ? AND position < ? ORDER"
                " BY position LIMIT ?"
            )
            bounds = (position_of(shard, start), position_of(shard, below), cells_max)
            sizes = [
                (position & ADDED_ID_MAX, size)
                for position, size in connection.execute(sql, bounds)
            ]
            start = step_end(start, below, cells_max, sizes)
            connection.execute(
                "UPDATE shard_counter SET log_start = ? WHERE shard = ?", (start, shard)
            )
            failpoint("sqlite.trim.before_delete")
            connection.execute(
                "DELETE FROM cell WHERE position >= ? AND position < ?",
                (position_of(shard, 0), position_of(shard, start)),
            )
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


class _PutTransaction:
    """The statements of one put, inside a write transaction."""

    def __init__(self, connection: sqlite3.Connection, now_us: int) -> None:
        self._connection = connection
        self._now_us = now_us

    def run(
        self, cells: Sequence[NewCell], shards: Sequence[int], bodies: Sequence[bytes]
    ) -> list[PutResult]:
        """Outcomes in the order of ``cells``."""
        # First without looking for duplicates: the unique key complains when there is one, and only
        # then is each cell looked up (a third cheaper).
        self._connection.execute("SAVEPOINT optimistic")
        try:
            results = self._insert(cells, shards, bodies, [None] * len(cells))
        except sqlite3.IntegrityError:
            self._connection.execute("ROLLBACK TO optimistic")
            results = self._insert(cells, shards, bodies, self._known(cells, shards))
        self._connection.execute("RELEASE optimistic")
        return results

    def _insert(
        self,
        cells: Sequence[NewCell],
        shards: Sequence[int],
        bodies: Sequence[bytes],
        known: Sequence[PutResult | int | None],
    ) -> list[PutResult]:
        counters = {shard: self._counter(shard) for shard in sorted(set(shards))}
        if any(counter.erasures for counter in counters.values()):
            erased = erased_among(
                self._connection,
                {
                    cell.row_key
                    for cell, shard in zip(cells, shards, strict=True)
                    if counters[shard].erasures
                },
            )
            known = without_erased(cells, shards, known, erased)
        results: list[PutResult] = []
        rows: list[tuple[object, ...]] = []
        for cell, shard, body, before in zip(cells, shards, bodies, known, strict=True):
            if isinstance(before, PutResult):
                results.append(before)
            elif before is not None:
                results.append(repeated(cells[before], results[before], cell))
            else:
                counter = counters[shard]
                added_id = counter.next_added_id
                row_key, column, ref_key, at_us = (
                    cell.row_key,
                    cell.column_name,
                    cell.ref_key,
                    counter.created_at_us,
                )
                crc = crc32c(
                    pack_key(added_id, ref_key, at_us, row_key) + column.encode() + body
                )  # cell_checksum, written out
                rows.append(
                    (position_of(shard, added_id), row_key, column, ref_key, at_us, body, crc)
                )
                results.append(PutResult(Outcome.STORED, shard, added_id))
                counter.next_added_id += 1
        failpoint("sqlite.put.before_insert")
        self._connection.executemany(INSERT_CELL, rows)
        failpoint("sqlite.put.before_counter")
        self._connection.executemany(
            "UPDATE shard_counter SET next_added_id = ?, last_created_at_us = ? WHERE shard = ?",
            [
                (counter.next_added_id, counter.created_at_us, shard)
                for shard, counter in counters.items()
                if counter.moved
            ],
        )
        return results

    def _counter(self, shard: int) -> _Counter:
        next_added_id, last_created_at_us, erasures = counter_of(
            self._connection, shard, "next_added_id, last_created_at_us, erasures"
        )
        return _Counter(next_added_id, max(self._now_us, last_created_at_us), erasures)

    def _known(
        self, cells: Sequence[NewCell], shards: Sequence[int]
    ) -> list[PutResult | int | None]:
        stored, damaged = {}, {}
        for triple, shard in {
            cell.triple: shard for cell, shard in zip(cells, shards, strict=True)
        }.items():
            try:
                if (found := _first(_find(self._connection, triple))) is not None:
                    stored[triple] = StoredTriple(found.shard, found.cell.added_id, found.cell.body)
            except (
                DataDamaged
            ) as error:  # it fails the puts of this cell, not those of the others in the group
                damaged[triple] = not_compared(triple, shard, error)
        return [
            damaged.get(cell.triple, before)
            for cell, before in zip(cells, outcomes_before(cells, stored), strict=True)
        ]


class _Counter:
    """A shard's counter inside one transaction."""

    def __init__(self, next_added_id: int, created_at_us: int, erasures: int) -> None:
        self._first = self.next_added_id = next_added_id
        self.created_at_us = created_at_us
        self.erasures = erasures

    @property
    def moved(self) -> bool:
        return self.next_added_id > self._first


def _find(connection: sqlite3.Connection, triple: Triple) -> sqlite3.Cursor:
    sql = f"SELECT position, {CELL} FROM cell WHERE row_key = ? AND column_name = ? AND ref_key = ?"  # noqa: S608
    return connection.execute(sql, triple)


def _fetched(cursor: sqlite3.Cursor) -> list[tuple[Any, ...]]:
    """The next rows: ``_SCAN_STEP`` of them, or as many as come to the bytes of a scan."""
    rows: list[tuple[Any, ...]] = []
    stored_bytes = 0
    for row in cursor:
        rows.append(row)
        body = row[_BODY]
        stored_bytes += (
            len(body) if type(body) is bytes else 0
        )  # damage turns a value into one of another type, and is reported later
        if len(rows) == _SCAN_STEP or stored_bytes > SCAN_BYTES_MAX:
            break
    return rows


def _page(found: Iterable[LocatedCell | None]) -> list[LocatedCell | None]:
    """The first of them, up to the one with which a page is full."""
    results: list[LocatedCell | None] = []
    page = Page()
    for each in found:
        results.append(each)
        if each is not None:
            page.take([each.cell.body])
            if page.is_full:
                break
    return results


def _found(connection: sqlite3.Connection, triple: Triple) -> LocatedCell | None:
    """The cell, or None where it is sure that there is none. Raises DataDamaged."""
    return _first(_find(connection, triple)) or _first_sure(connection, iter(()), triple)


def _first_sure(
    connection: sqlite3.Connection, rows: Iterator[tuple[Any, ...]], searched: Key
) -> LocatedCell | None:
    """The first cell, where the search that ended at ``searched`` hides none. Raises
    DataDamaged."""
    found = _first(rows)
    refuse_hidden(connection, searched)
    return found


def _first(rows: Iterator[tuple[Any, ...]]) -> LocatedCell | None:
    row = next(rows, None)
    return _located(row) if row else None


def _located(row: tuple[Any, ...]) -> LocatedCell:
    shard = row[0] >> ADDED_ID_BITS
    return LocatedCell(shard, stored_cell(shard, row[1:]))


def _scanned(
    connection: sqlite3.Connection, shard: int, location: int, limit: int
) -> tuple[list[StoredCell], bool]:
    """The first cells from a location on, as many as one scan may give; and whether there are no
    more."""
    sql = f"SELECT {CELL} FROM cell WHERE position BETWEEN ? AND ? ORDER BY position LIMIT ?"  # noqa: S608
    cursor = connection.execute(
        sql, (position_of(shard, location), position_of(shard, ADDED_ID_MAX), limit)
    )
    cells: list[StoredCell] = []
    scanned_bytes = 0
    while rows := stored_cells(shard, _fetched(cursor)):
        step_bytes = sum([len(row.body) for row in rows])
        if scanned_bytes + step_bytes <= SCAN_BYTES_MAX:
            scanned_bytes += step_bytes
            cells += rows
            continue
        for row in rows:
            scanned_bytes += len(row.body)
            if scanned_bytes > SCAN_BYTES_MAX and cells:
                cursor.close()
                return within_scan(cells), False
            cells.append(row)
    within = within_scan(cells)
    return within, len(within) == len(cells) < limit
