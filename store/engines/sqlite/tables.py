"""The tables of the file with the cells: makes them in a new file, and raises the version of an
older one.

Stores of schema version 3 and before have no identity. The transaction that raises their version
draws one, and lists the files that are there as ``adopting``. They have to be there, and take the
identity over when they are opened. Killed in between, the next process to open them completes it.
"""

from __future__ import annotations

import sqlite3
from importlib import resources
from pathlib import Path
from typing import Final

from cellfeed.store.engines.sqlite.files import SqliteFile
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE, CURES, INDEX_FILE, STATE_FILE
from cellfeed.store.errors import ProtectData
from cellfeed.store.histories import History, new_history

SCHEMA_VERSION: Final = 5
"""1: no dictionaries; 2: no count of erasures; 3: no identity, no checksums; 4: no origin. A file
of an older version gets the missing parts when it is opened; a program of that version refuses it
from then on."""


_INDEX_DEFINITIONS: Final = b"indexes/"
"""Begins the keys of the state entries that define indexes
(:mod:`cellfeed.store.indexes.catalog`)."""


def prepare(
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
            f" {CURES[CELLS_FILE]}"
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
