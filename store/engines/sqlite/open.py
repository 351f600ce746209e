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
"""

from __future__ import annotations

from pathlib import Path

from cellfeed.store.cells.sharding import check_new_shard_count
from cellfeed.store.engines.sqlite.files import SqliteFile
from cellfeed.store.engines.sqlite.store_files import (
    CELLS_FILE,
    CURES,
    INDEX_FILE,
    OTHERS,
)
from cellfeed.store.engines.sqlite.tables import prepare
from cellfeed.store.errors import DataDamaged, ProtectData
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.histories import (
    NO_HISTORY,
    History,
    new_history_id,
    refuse_other_history,
)

declare("sqlite.open.after_cells", "sqlite.open.after_adoption")


def open_cells(
    directory: Path, datastore: str, shards: int, *, parent: History = NO_HISTORY
) -> SqliteFile:
    """The file with the cells, made when the directory has none of the files. ``parent``: the
    history that a new one continues. Raises ProtectData for another datastore's file, a newer one,
    or a lost one; InvalidRequest, StorageUnavailable, DataDamaged."""
    path = directory / CELLS_FILE
    # The others are looked for first: they are made after the cells, so where one is there, so are
    # the cells.
    others = [name for name in OTHERS if (directory / name).exists()]
    if others and not path.exists():
        raise ProtectData(
            f"{path} is missing, and with it the cells of the store whose {' and '.join(others)}"
            f" are there. {CURES[CELLS_FILE]}"
        )
    if parent == NO_HISTORY and not path.exists():
        check_new_shard_count(shards)
    file = SqliteFile(path, create=not others)
    try:
        with file.write() as connection:
            prepare(connection, path, others, datastore, shards, parent)
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
            f" {CURES[name]}"
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
            f" {CURES[CELLS_FILE]}"
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
    cure = CURES[file.path.name]
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
