"""What the files of an embedded store say of themselves: SQLite's own check, identities, counters,
and the cells as they lie there. Nothing is written."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from cellfeed.store.cells import known_dictionaries
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.contract.findings import Findings, OnCells
from cellfeed.store.engines.contract.log_check import ROWS_CELLS, check_log
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.engines.sqlite.cells import CELL, position_of, stored_cells
from cellfeed.store.engines.sqlite.dictionaries import SqliteDictionaries
from cellfeed.store.engines.sqlite.files import SqliteFile, connect, sqlite_error
from cellfeed.store.engines.sqlite.instance_lock import SharedLock
from cellfeed.store.engines.sqlite.open import CELLS_FILE, INDEX_FILE, SCHEMA_VERSION, STATE_FILE
from cellfeed.store.errors import CellfeedError, DataDamaged, NotFound
from cellfeed.store.limits import ADDED_ID_MAX, SCAN_BYTES_MAX

LINES_MAX: Final = 100
"""Lines of SQLite's own check that are named."""

_crc = itemgetter(6)

_ALL_LINES: Final = 2**31 - 1
_NULL_VALUE: Final = re.compile(r"NULL value in (\w+)\.(\w+)", re.ASCII)


def check_files(
    directory: Path, datastore: str, shards: int, into: Findings, on_cells: OnCells = lambda _: None
) -> None:
    """Looks at every file in ``directory``, beside processes that have them open. Raises NotFound
    where there is no store, StorageUnavailable while it is restored or scrubbed."""
    if not directory.is_dir():
        raise NotFound(f"there is no datastore in {directory}")
    with closing(SharedLock(directory)):
        own = Findings()
        with (
            ThreadPoolExecutor(1, thread_name_prefix="integrity") as beside
        ):  # SQLite's own check takes as long as all of ours, and not the interpreter's lock
            checked = (
                beside.submit(_integrity, directory / CELLS_FILE, own)
                if (directory / CELLS_FILE).exists()
                else None
            )
            with ExitStack() as opened:
                with suppress(
                    CellfeedError
                ):  # a file that cannot be opened is a finding of what follows
                    file = opened.enter_context(
                        closing(SqliteFile(directory / CELLS_FILE, create=False))
                    )
                    opened.enter_context(known_dictionaries.source(SqliteDictionaries(file).find))
                history_id = _check_cells(directory, datastore, shards, into, on_cells)
            if checked is not None:
                checked.result()
        into.take(own)
        for name in (STATE_FILE, INDEX_FILE):
            _check_other(directory / name, history_id, into)


def last_ids(directory: Path) -> int:
    """How many ids the counters have given, for a progress bar; 0 where they cannot be read."""
    try:
        with _reading(directory / CELLS_FILE) as connection:
            return sum(
                end - start
                for start, end in connection.execute(
                    "SELECT log_start, next_added_id FROM shard_counter"
                )
            )
    except (CellfeedError, TypeError):
        return 0


def file_history(directory: Path) -> str:
    """The identity in the file with the cells; empty where it cannot be read."""
    try:
        with _reading(directory / CELLS_FILE) as connection:
            rows = [str(found) for (found,) in connection.execute("SELECT history_id FROM history")]
    except CellfeedError:
        return ""
    return rows[0] if len(rows) == 1 else ""


def integrity_of(path: Path) -> bool:
    """Whether SQLite's own check finds nothing in a file."""
    return _integrity(path, Findings())


def _check_cells(
    directory: Path, datastore: str, shards: int, into: Findings, on_cells: OnCells
) -> str | None:
    """The file with the cells; its history, where it tells one."""
    path = directory / CELLS_FILE
    if not path.exists():
        into.add("identity", CELLS_FILE, f"{path} is missing, and with it the cells")
        return None
    try:
        with _reading(path) as connection:
            history_id = _identity(connection, path, datastore, shards, into)
            for shard in range(shards):
                _check_shard(connection, path, shard, shards, into, on_cells)
            [(beyond,)] = connection.execute(
                "SELECT count(*) FROM cell WHERE position < 0 OR position >= ?",
                (position_of(shards, 0),),
            ).fetchall()
            if beyond:
                into.add("key", CELLS_FILE, f"{beyond} cells lie outside of the {shards} shards")
    except CellfeedError as error:
        into.add("unread", CELLS_FILE, str(error))
        return None
    return history_id


def _identity(
    connection: sqlite3.Connection, path: Path, datastore: str, shards: int, into: Findings
) -> str | None:
    rows = connection.execute("SELECT name, shards, schema_version FROM datastore").fetchall()
    if rows != [(datastore, shards, SCHEMA_VERSION)]:
        into.add(
            "identity",
            CELLS_FILE,
            f"{path} says that it is {rows}, and is opened as {datastore!r} with {shards} shards in"
            f" version {SCHEMA_VERSION}",
        )
        return None
    histories = [
        history_id for (history_id,) in connection.execute("SELECT history_id FROM history")
    ]
    if len(histories) != 1:
        into.add(
            "identity",
            CELLS_FILE,
            f"{path} has {len(histories)} identities of its history, and not one",
        )
        return None
    for name, adopting in connection.execute("SELECT name, adopting FROM history_file"):
        if not adopting and not path.with_name(name).exists():
            into.add(
                "identity",
                name,
                f"{path.with_name(name)} is missing; it belongs to history {histories[0]}",
            )
    return str(histories[0])


def _check_shard(
    connection: sqlite3.Connection,
    path: Path,
    shard: int,
    shards: int,
    into: Findings,
    on_cells: OnCells,
) -> None:
    row = connection.execute(
        "SELECT log_start, next_added_id, next_added_id, leader_epoch, last_created_at_us, erasures"
        " FROM shard_counter WHERE shard = ?",
        (shard,),
    ).fetchone()
    if (
        row is None
        or not all(type(value) is int for value in row)
        or not 0 <= row[0] <= row[1] <= ADDED_ID_MAX
    ):
        into.add(
            "counter", CELLS_FILE, f"the counter of shard {shard} is lost or damaged: {row}", shard
        )
        return
    head = Head(*row)
    columns = {name for (name,) in connection.execute("SELECT name FROM column_seen")}
    check_log(
        CELLS_FILE,
        shard,
        shards,
        _SqliteLog(connection, path, shard),
        head,
        columns,
        into,
        on_cells,
    )
    for first, stop, what in (
        (0, head.log_start, "below the log's start"),
        (head.next_added_id, ADDED_ID_MAX, "at or above the next id"),
    ):
        between = position_of(shard, first), position_of(shard, stop)
        sql = (
            "SELECT count(*), min(position), max(position) FROM cell WHERE position >= ? AND"
            " position < ?"
        )
        [(count, least, most)] = connection.execute(sql, between).fetchall()
        if count:
            ids = range(least & ADDED_ID_MAX, (most & ADDED_ID_MAX) + 1)
            into.add(
                "counter",
                CELLS_FILE,
                f"shard {shard} has {count} cells {what}, from {ids.start} to {ids.stop - 1}",
                shard,
                ids,
            )


class _SqliteLog:
    """:class:`cellfeed.store.engines.contract.log_check.LogStorage`."""

    def __init__(self, connection: sqlite3.Connection, path: Path, shard: int) -> None:
        self._connection, self._path, self._shard = connection, path, shard

    def cells(self, ids: range) -> list[StoredCell]:
        rows, found_bytes, asked = list[tuple[Any, ...]](), 0, self._rows(ids)
        while found_bytes <= SCAN_BYTES_MAX and (more := list(islice(asked, ROWS_CELLS))):
            if None in map(_crc, more):
                raise DataDamaged(
                    "cells of an earlier version have no checksum: their bodies are decoded"
                )
            rows += more
            found_bytes += sum(len(row[5]) for row in more if isinstance(row[5], bytes))
        return stored_cells(self._shard, rows)

    def rows(self, ids: range) -> list[tuple[Any, ...]]:
        return list(self._rows(ids))

    def _rows(self, ids: range) -> Iterator[tuple[Any, ...]]:
        sql = f"SELECT {CELL} FROM cell WHERE position >= ? AND position < ? ORDER BY position"  # noqa: S608
        try:
            yield from self._connection.execute(
                sql,
                (
                    position_of(self._shard, ids.start),
                    position_of(self._shard, ids.start) + len(ids),
                ),
            )
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise DataDamaged(str(sqlite_error(self._path, "", error))) from error


def _check_other(path: Path, history_id: str | None, into: Findings) -> None:
    if not path.exists():
        return  # the file with the cells says whether it has to be there
    if not _integrity(path, into):
        return
    try:
        with _reading(path) as connection:
            own = [found for (found,) in connection.execute("SELECT history_id FROM history")]
    except CellfeedError as error:
        into.add("unread", path.name, str(error))
        return
    if history_id is not None and own != [history_id]:
        into.add(
            "identity",
            path.name,
            f"{path} belongs to history {', '.join(own) or 'none'}, the cells beside it to"
            f" {history_id}",
        )


def _integrity(path: Path, into: Findings) -> bool:
    """SQLite's own check: pages, the order of rows, and every entry of an index against its row,
    both ways."""
    try:
        with _reading(path) as connection:
            lines = list(islice(_complaints(connection), LINES_MAX))
    except CellfeedError as error:
        lines = [str(error)]
    for line in lines:
        into.add("integrity", path.name, f"{path}: {line}")
    return not lines


def _complaints(connection: sqlite3.Connection) -> Iterator[str]:
    """What is wrong. SQLite 3.40 and before takes columns of a WITHOUT ROWID table for NULL whose
    key has another order than its columns: a line for each row. So the rows themselves are asked.
    """
    asked: dict[str, bool] = {}
    for (line,) in connection.execute(f"PRAGMA integrity_check({_ALL_LINES})"):
        if (found := _NULL_VALUE.fullmatch(str(line))) is not None:
            if line not in asked:
                asked[line] = bool(
                    connection.execute(
                        f"SELECT 1 FROM {found[1]} WHERE {found[2]} IS NULL LIMIT 1"  # noqa: S608
                    ).fetchall()
                )
            if not asked[line]:
                continue
        if line != "ok":
            yield str(line)


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection in a transaction of one moment. Raises DataDamaged, StorageUnavailable."""
    with closing(connect(path)) as connection:
        try:
            connection.execute("PRAGMA query_only=ON")
            connection.execute("BEGIN")
            yield connection
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise sqlite_error(path, "", error) from error
