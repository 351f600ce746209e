"""Replaces cells of an embedded store that a check has found damaged or lost, and builds its index
of keys again from the cells.

The rest of the instance may run: each call is one transaction, and the file is compared with the
one that others have open, as at every commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from cellfeed.store.cells.cell import ERASED_COLUMN, StoredCell
from cellfeed.store.cells.from_stored import without_body
from cellfeed.store.engines.sqlite.cells import INSERT_CELL, counter_of, position_of, row_of
from cellfeed.store.engines.sqlite.files import SqliteFile
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE
from cellfeed.store.errors import StorageUnavailable


class SqliteMender:
    """:class:`cellfeed.store.backups.repair.Mender`. ``directory``: of the datastore, whose shared
    lock the caller holds."""

    def __init__(self, directory: Path) -> None:
        self._file = SqliteFile(directory / CELLS_FILE, create=False)

    def mend(self, shard: int, cells: Sequence[StoredCell]) -> None:
        with self._file.write() as connection:
            start, end = counter_of(connection, shard, "log_start, next_added_id")
            if not all(start <= cell.added_id < end for cell in cells):
                raise StorageUnavailable(f"the log of shard {shard} was trimmed meanwhile")
            names = {cell.row_key for cell in cells if cell.column_name == ERASED_COLUMN}
            erased = names | {
                cell.row_key for cell in cells if _is_erased(connection, cell.row_key)
            }
            connection.executemany(
                "DELETE FROM cell WHERE position = ?",
                [(position_of(shard, cell.added_id),) for cell in cells],
            )
            connection.executemany(
                INSERT_CELL, [row_of(shard, without_body(cell, erased)) for cell in cells]
            )

    def rebuild_keys(self) -> None:
        """Builds the index of keys again from the rows. Raises DataDamaged, StorageUnavailable
        where two rows have one key."""
        with self._file.write() as connection:
            connection.execute("REINDEX cell")

    def close(self) -> None:
        self._file.close()


def _is_erased(connection: sqlite3.Connection, row_key: bytes) -> bool:
    sql = "SELECT 1 FROM cell WHERE row_key = ? AND column_name = ? AND ref_key = 0"
    return connection.execute(sql, (row_key, ERASED_COLUMN)).fetchone() is not None
