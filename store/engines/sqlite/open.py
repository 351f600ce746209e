"""Opens the files of an embedded store, and checks that they belong together: one history, one
identity.

A **history identity** is a random 128-bit number, drawn when the store is made and again by every
restore. A restore notes the identity before as its parent. Each file has the identity:
``node-0.sqlite3`` (the cells), ``state.sqlite3`` and, from the first index on, ``index.sqlite3``.
The file with the cells also lists which other files were made (``history_file``). A process that
opens a file compares. Without that, a lost file was made again, empty: ids were given a second
time, triggers ran for nothing, queries missed rows.

Crash points. The file with the cells comes first, with identity and tables in one transaction.
Another file takes the identity over in its first transaction; then it is listed. So a file that is
not listed may be made, or completed where a kill left it; one that is listed has to be there with
the identity. Other files without the cells' file are those of a store that has lost it.

Stores of schema version 3 and before have no identity. The transaction that raises their version
draws one, and lists the files that are there as ``adopting``. They have to be there, and take the
identity over when they are opened. Killed in between, the next process to open them completes it.
"""

from __future__ import annotations

import sqlite3
from importlib import resources
from pathlib import Path
from typing import Final

from cellfeed.store.cells.sharding import check_new_shard_count
from cellfeed.store.engines.sqlite.files import SqliteFile
from cellfeed.store.errors import DataDamaged, ProtectData
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.histories import (
    NO_HISTORY,
    History,
    new_history,
    new_history_id,
    refuse_other_history,
)

declare("sqlite.open.after_cells", "sqlite.open.after_adoption")

SCHEMA_VERSION: Final = 5
"""1: no dictionaries; 2: no count of erasures; 3: no identity, no checksums; 4: no origin. A file
of an older version gets the missing parts when it is opened; a program of that version refuses it
from then on."""

CELLS_FILE: Final = "node-0.sqlite3"
"""The file with the cells, in the datastore's directory."""

STATE_FILE: Final = "state.sqlite3"
"""The file with the state table, there too."""

INDEX_FILE: Final = "index.sqlite3"
"""The file with the entries of indexes, there too, once there is one."""

_OTHERS: Final = (STATE_FILE, INDEX_FILE)

_CURE: Final = {
    CELLS_FILE: (
        "Put the file back, with its -wal, or restore a backup into empty storage (`cellfeed backup"
        " restore`). To begin an empty store, move the other files away as well"
    ),
    STATE_FILE: (
        "Put the file back, with its -wal, or restore a backup into empty storage (`cellfeed backup"
        " restore`)"
    ),
    INDEX_FILE: (
        "Put the file back, with its -wal, or run `cellfeed index rebuild`: it builds every index"
        " again from the cells"
    ),
}

_INDEX_DEFINITIONS: Final = b"indexes/"
"""Begins the keys of the state entries that define indexes
(:mod:`cellfeed.store.indexes.catalog`)."""


def open_cells(
    directory: Path, datastore: str, shards: int, *, parent: History = NO_HISTORY
) -> SqliteFile:
    """The file with the cells, made when the directory has none of the files. ``parent``: the
    history that a new one continues. Raises ProtectData for another datastore's file, a newer one,
    or a lost one; InvalidRequest, StorageUnavailable, DataDamaged."""
    path = directory / CELLS_FILE
    # The others are looked for first: they are made after the cells, so where one is there, so are
    # the cells.
    others = [name for name in _OTHERS if (directory / name).exists()]
    if others and not path.exists():
        raise ProtectData(
            f"{path} is missing, and with it the cells of the store whose {' and '.join(others)}"
            f" are there. {_CURE[CELLS_FILE]}"
        )
    if parent == NO_HISTORY and not path.exists():
        check_new_shard_count(shards)
    file = SqliteFile(path, create=not others)
    try:
        with file.write() as connection:
            _prepare(connection, path, others, datastore, shards, parent)
    except BaseException:
        file.close()
        raise
    failpoint("sqlite.open.after_cells")
    return file


def open_other(cells: SqliteFile, name: str) -> SqliteFile:
    """The state's or the indexes' file beside ``cells``, made when it was never made. Raises
    ProtectData when it is lost or of another history."""
    path = cells.path.with_name(name)
    history_id = history_of(cells).history_id
    with cells.read() as connection:
        listed = connection.execute(
            "SELECT adopting FROM history_file WHERE name = ?", (name,)
        ).fetchone()
    if listed is not None and not path.exists():
        raise ProtectData(
            f"{path} is missing; it belongs to history {history_id}, as {cells.path} does."
            f" {_CURE[name]}"
        )
    file = SqliteFile(path, create=listed is None)
    try:
        _adopt(file, history_id, may_adopt=listed is None or bool(listed[0]))
        if listed is None or listed[0]:
            failpoint("sqlite.open.after_adoption")
            with cells.write() as connection:
                connection.execute("INSERT OR REPLACE INTO history_file VALUES (?, 0)", (name,))
    except BaseException:
        file.close()
        raise
    return file


def history_of(cells: SqliteFile) -> History:
    """The history in a file with cells. Raises DataDamaged when it has none any more."""
    with cells.read() as connection:
        rows = connection.execute(
            "SELECT history_id, coalesce(parent, ''), origin FROM history"
        ).fetchall()
    if len(rows) != 1:
        raise DataDamaged(
            f"{cells.path} has {len(rows)} identities of its history, and not one."
            f" {_CURE[CELLS_FILE]}"
        )
    return History(*rows[0])


def renew_index(cells: SqliteFile) -> None:
    """Makes the next :func:`open_other` make an empty file for indexes. The old file is moved
    aside, its logs first: a log beside another file would be taken for that one's. The caller has
    marked every version of an index as dropped: an empty file has no entries of them. A process
    that has the old file open no longer writes to it."""
    path = cells.path.with_name(INDEX_FILE)
    aside = f"{path}.replaced-{new_history_id()[:8]}"
    for suffix in ("-shm", "-wal", ""):
        old = Path(f"{path}{suffix}")
        if old.exists():
            old.rename(f"{aside}{suffix}")
    with cells.write() as connection:
        connection.execute("DELETE FROM history_file WHERE name = ?", (INDEX_FILE,))


def _prepare(
    connection: sqlite3.Connection,
    path: Path,
    others: list[str],
    datastore: str,
    shards: int,
    parent: History,
) -> None:
    """Makes the tables of a new file, or those that the version before did not have."""
    row = None
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'datastore'").fetchone():
        row = connection.execute("SELECT name, shards, schema_version FROM datastore").fetchone()
    if row is not None and (row[:2] != (datastore, shards) or row[2] > SCHEMA_VERSION):
        raise ProtectData(
            f"{path} holds datastore {row[0]!r} with {row[1]} shards in schema version {row[2]};"
            f" opened as {datastore!r} with {shards} shards in version {SCHEMA_VERSION}. A row"
            " key's shard may never change: open it with its own settings"
        )
    if row is not None and row[2] == SCHEMA_VERSION:
        return  # nothing is made again: a table that is missing here is lost
    if row is None and others:
        raise ProtectData(
            f"{path} has no tables, but belongs to a store whose {' and '.join(others)} are there."
            f" {_CURE[CELLS_FILE]}"
        )
    for statement in filter(
        str.strip,
        resources.files("cellfeed.store.engines.sqlite")
        .joinpath("schema.sql")
        .read_text()
        .split(";"),
    ):
        connection.execute(statement)
    if not connection.execute(
        "SELECT 1 FROM pragma_table_info('history') WHERE name = 'origin'"
    ).fetchone():
        connection.execute("ALTER TABLE history ADD COLUMN origin TEXT")
    if connection.execute("SELECT 1 FROM history").fetchone() is None:
        made = new_history(parent)
        connection.execute(
            "INSERT INTO history VALUES (?, ?, ?)",
            (made.history_id, made.parent or None, made.origin_id),
        )
    if row is None:
        connection.execute(
            "INSERT INTO datastore VALUES (?, ?, ?)", (datastore, shards, SCHEMA_VERSION)
        )
        numbers = [(shard,) for shard in range(shards)]
        connection.executemany("INSERT INTO shard_counter (shard) VALUES (?)", numbers)
        connection.executemany("INSERT INTO leader_epoch VALUES (?, 0, 0)", numbers)
    else:
        if not connection.execute(
            "SELECT 1 FROM pragma_table_info('shard_counter') WHERE name = 'erasures'"
        ).fetchone():
            connection.execute(
                "ALTER TABLE shard_counter ADD COLUMN erasures INTEGER NOT NULL DEFAULT 0"
            )
        if not connection.execute(
            "SELECT 1 FROM pragma_table_info('cell') WHERE name = 'crc'"
        ).fetchone():
            connection.execute("ALTER TABLE cell ADD COLUMN crc INTEGER")
        connection.execute("UPDATE history SET origin = history_id WHERE origin IS NULL")
        connection.execute("UPDATE datastore SET schema_version = ?", (SCHEMA_VERSION,))
        if row[2] < 4:
            connection.executemany(
                "INSERT OR IGNORE INTO history_file VALUES (?, 1)",
                [(name,) for name in _files_before(connection, path, others)],
            )


def _files_before(connection: sqlite3.Connection, cells: Path, others: list[str]) -> list[str]:
    """The files that a store without an identity has to have: that of the state, once there are
    cells; that of indexes where the state defines one."""
    [(cells_given,)] = connection.execute("SELECT max(next_added_id) FROM shard_counter").fetchall()
    if STATE_FILE not in others:
        return [STATE_FILE, *others] if cells_given else others
    state = SqliteFile(cells.with_name(STATE_FILE), create=False)
    try:
        with state.read() as reading:
            defined = (
                reading.execute("SELECT 1 FROM sqlite_schema WHERE name = 'entry'").fetchone()
                and reading.execute(
                    "SELECT 1 FROM entry WHERE key >= ? AND key < ? LIMIT 1",
                    (_INDEX_DEFINITIONS, _INDEX_DEFINITIONS + b"\xff"),
                ).fetchone()
            )
    finally:
        state.close()
    return [STATE_FILE, INDEX_FILE] if defined else others


def _adopt(file: SqliteFile, history_id: str, *, may_adopt: bool) -> None:
    """Compares the identity of a file, or gives it one. Raises ProtectData."""
    with file.read() as connection:
        made = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'history'").fetchone()
        own = (
            [found for (found,) in connection.execute("SELECT history_id FROM history")]
            if made
            else []
        )
    if own == [history_id]:
        return
    cure = _CURE[file.path.name]
    if own:
        refuse_other_history(
            str(file.path), ", ".join(own), "the cells beside it", history_id, cure
        )
    if not may_adopt:
        raise ProtectData(
            f"{file.path} has no history identity, and is not the file that belongs to the cells of"
            f" history {history_id}. {cure}"
        )
    with file.write() as connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS history (history_id TEXT NOT NULL, parent TEXT) STRICT"
        )
        if (
            connection.execute("SELECT 1 FROM history").fetchone() is None
        ):  # two processes may open a new store at once
            connection.execute("INSERT INTO history VALUES (?, NULL)", (history_id,))
