"""The file with the index tables of an embedded store, which most stores never need."""

from __future__ import annotations

import threading

from cellfeed.store.engines.sqlite.files import SqliteFile
from cellfeed.store.engines.sqlite.index import SqliteIndexes
from cellfeed.store.engines.sqlite.open import open_other, renew_index
from cellfeed.store.engines.sqlite.store_files import INDEX_FILE


class IndexFile:
    """The file beside ``cells``, made with the first index that is looked at. Any number of
    threads."""

    def __init__(self, cells: SqliteFile, shards: int) -> None:
        self._cells = cells
        self._shards = shards
        self._lock = threading.Lock()
        self._opened: tuple[SqliteFile, SqliteIndexes] | None = None

    @property
    def opened(self) -> SqliteFile | None:
        """The file; None while nobody has looked at an index."""
        return None if self._opened is None else self._opened[0]

    def indexes(self) -> SqliteIndexes:
        """Raises ProtectData where the file is lost."""
        with self._lock:
            if self._opened is None:
                file = open_other(self._cells, INDEX_FILE)
                self._opened = file, SqliteIndexes(self._cells, file, self._shards)
            return self._opened[1]

    def renew(self) -> None:
        """Puts an empty file in the place of this one, which may be lost or damaged. Every version
        is to be dropped in the catalog before."""
        with self._lock:
            self._close()
            renew_index(self._cells)

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened[0].close()
