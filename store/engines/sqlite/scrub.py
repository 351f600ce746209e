"""Rewrites the files of an embedded store, so that none of them keeps a byte of erased or trimmed
cells.

``secure_delete`` overwrites freed bytes. But SQLite moves cells between pages as tables grow and
does not overwrite their old places. And the write-ahead log keeps commits until it is overwritten
or deleted. So a file is taken out of WAL mode and vacuumed. Leaving WAL mode deletes the log, and
needs the file to be open nowhere else. Cells from before there were checksums get theirs.

Crash points: a vacuum is a transaction of SQLite. A file that was left out of WAL mode is put back
by the next process that opens it. Bytes that the file system keeps of deleted files and overwritten
blocks are beyond the reach of a program.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from cellfeed.store.cells import known_dictionaries
from cellfeed.store.cells.dictionary import Dictionary
from cellfeed.store.engines.sqlite.cells import add_checksums
from cellfeed.store.engines.sqlite.connect import connect
from cellfeed.store.engines.sqlite.instance_lock import exclusive_lock
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint

declare("sqlite.scrub.between")


def scrub_files(directory: Path) -> list[Path]:
    """Scrubs every file of the store in ``directory``, none of which may be open anywhere; which
    ones. Raises ProtectData when one is, StorageUnavailable."""
    with exclusive_lock(directory, "a scrub"):
        return _scrubbed(directory)


def _scrubbed(directory: Path) -> list[Path]:
    scrubbed = sorted(directory.glob("*.sqlite3"))
    for path in scrubbed:
        with closing(connect(path)) as connection:
            try:
                connection.execute("PRAGMA busy_timeout=0")
                connection.execute("PRAGMA journal_mode=DELETE")
                failpoint("sqlite.scrub.between")
                if (
                    path.name == CELLS_FILE
                    and connection.execute(
                        "SELECT 1 FROM pragma_table_info('cell') WHERE name = 'crc'"
                    ).fetchone()
                ):
                    dictionaries = dict(_dictionaries(connection))
                    with known_dictionaries.source(dictionaries.get):
                        add_checksums(connection)
                connection.execute("VACUUM")
                connection.execute("PRAGMA journal_mode=WAL")
            except sqlite3.Error as error:
                raise StorageUnavailable(
                    f"{path} is not scrubbed: {error}; end every process that has it open"
                    " (`cellfeed down`), and scrub again"
                ) from error
    return scrubbed


def _dictionaries(connection: sqlite3.Connection) -> Iterator[tuple[int, Dictionary]]:
    """Those of the file: bodies are decoded before they get a checksum."""
    for dictionary_id, *described in connection.execute(
        "SELECT dictionary_id, column_name, content, trained_at_us, samples FROM dictionary"
    ):
        yield dictionary_id, Dictionary(*described)
