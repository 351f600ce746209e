"""Puts into an embedded store: bodies are encoded before the write lock is taken.

Crash points of a put: before the commit nothing of it is there, and the counter is where it was.
The commit is one synced append to the WAL, so after it everything is there. A process that dies
between the commit and its answer leaves cells that a retry finds (``exists``, the same id).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cellfeed.store.cells.body_codec import DEFAULT_CODEC
from cellfeed.store.cells.body_encoding import encode_cells
from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.engines.contract.dictionaries_of_puts import DictionariesOfPuts
from cellfeed.store.engines.sqlite.dictionaries import SqliteDictionaries, are_in_use
from cellfeed.store.engines.sqlite.files import SqliteFile
from cellfeed.store.engines.sqlite.put import PutTransaction
from cellfeed.store.failpoints import declare, failpoint

declare("sqlite.put.before_commit", "sqlite.put.after_commit")


class SqlitePuts:
    """Any number of threads. ``codec``: of bodies without a dictionary."""

    def __init__(
        self,
        file: SqliteFile,
        dictionaries: SqliteDictionaries,
        codec: int,
        clock_us: Callable[[], int],
    ) -> None:
        self._file = file
        self._dictionaries = DictionariesOfPuts(dictionaries)
        dictionaries.on_use = self._dictionaries.forget
        self._codec = codec
        self._clock_us = clock_us
        self._columns_seen: set[str] = set()

    def run(self, cells: Sequence[NewCell], shards: Sequence[int]) -> list[PutResult]:
        """Outcomes in the order of ``cells``. Raises as the contract's ``put``."""
        while (results := self._run_once(cells, shards)) is None:
            self._dictionaries.forget()
        return results

    def _run_once(self, cells: Sequence[NewCell], shards: Sequence[int]) -> list[PutResult] | None:
        """None, nothing written, where a dictionary was retired since this process looked."""
        dictionaries = self._dictionaries.under(None) if self._codec == DEFAULT_CODEC else {}
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
