"""The check of an embedded store's files, by themselves: SQLite's own check, identities, counters,
and the cells as they lie there. Nothing is written."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from itertools import islice
from pathlib import Path
from typing import Final

from cellfeed.store.cells import known_dictionaries
from cellfeed.store.engines.contract.findings import Findings, OnCells
from cellfeed.store.engines.sqlite.cells import position_of
from cellfeed.store.engines.sqlite.checked_log import check_ids, check_outside, head_of, reading
from cellfeed.store.engines.sqlite.dictionaries import SqliteDictionaries
from cellfeed.store.engines.sqlite.files import SqliteFile
from cellfeed.store.engines.sqlite.instance_lock import SharedLock
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE, INDEX_FILE, STATE_FILE
from cellfeed.store.engines.sqlite.tables import SCHEMA_VERSION
from cellfeed.store.errors import CellfeedError, NotFound

LINES_MAX: Final = 100
"""Lines of SQLite's own check that are named."""

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
                ):  # the checks below report a file that cannot be opened
                    file = opened.enter_context(
                        closing(SqliteFile(directory / CELLS_FILE, create=False))
                    )
                    opened.enter_context(known_dictionaries.source(SqliteDictionaries(file).find))
                history_id = _check_cells(directory, datastore, shards, into, on_cells)
            if checked is not None:
                checked.result()
        into.take(own)
        for name in (STATE_FILE, INDEX_FILE):
            check_other(directory / name, history_id, into)


def last_ids(directory: Path) -> int:
    """How many ids the counters have given, for a progress bar; 0 where they cannot be read."""
    try:
        with reading(directory / CELLS_FILE) as connection:
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
        with reading(directory / CELLS_FILE) as connection:
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
    """The file with the cells; returns its history, where it has one."""
    path = directory / CELLS_FILE
    if not path.exists():
        into.add("identity", CELLS_FILE, f"{path} is missing, and with it the cells")
        return None
    try:
        with reading(path) as connection:
            history_id = check_identity(connection, path, datastore, shards, into)
            for shard in range(shards):
                head = head_of(connection, path, shard, into)
                if head is not None:
                    check_ids(connection, path, shard, shards, head, into, on_cells)
                    check_outside(connection, shard, head, into)
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


def check_identity(
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


def check_other(path: Path, history_id: str | None, into: Findings) -> None:
    if not path.exists():
        return  # the file with the cells says whether it has to be there
    if not _integrity(path, into):
        return
    try:
        with reading(path) as connection:
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
        with reading(path) as connection:
            lines = list(islice(_complaints(connection), LINES_MAX))
    except CellfeedError as error:
        lines = [str(error)]
    for line in lines:
        into.add("integrity", path.name, f"{path}: {line}")
    return not lines


def _complaints(connection: sqlite3.Connection) -> Iterator[str]:
    """The faults that SQLite's own check finds. SQLite 3.40 and before takes columns of a WITHOUT
    ROWID table for NULL whose key has another order than its columns: a line for each row. So the
    rows themselves are asked.
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
