"""An embedded store's files, checked in pieces."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from cellfeed.store.engines.contract.findings import Findings
from cellfeed.store.engines.contract.piecewise import Piece, piece_of
from cellfeed.store.engines.sqlite.cells import position_of
from cellfeed.store.engines.sqlite.checked_log import check_ids, check_outside, head_of, reading
from cellfeed.store.engines.sqlite.integrity import check_identity, check_other
from cellfeed.store.engines.sqlite.store_files import CELLS_FILE, INDEX_FILE, STATE_FILE
from cellfeed.store.limits import ADDED_ID_MAX

_LENGTHS: Final = f"""
SELECT position & {ADDED_ID_MAX}, ifnull(length(body), 0) FROM cell NOT INDEXED
WHERE position >= ? AND position < ? ORDER BY position LIMIT ?
"""  # noqa: S608

_HIDDEN: Final = f"""
SELECT cell.position & {ADDED_ID_MAX}
FROM cell NOT INDEXED LEFT JOIN cell AS entry INDEXED BY sqlite_autoindex_cell_1
ON entry.row_key = cell.row_key AND entry.column_name = cell.column_name
AND entry.ref_key = cell.ref_key
WHERE cell.position >= ? AND cell.position < ? AND entry.position IS NOT cell.position
"""  # noqa: S608
"""Cells that a search by their key does not lead to: no read by key can notice them by itself."""


class FilesInPieces:
    """:class:`cellfeed.store.engines.contract.piecewise.InPieces` of a store that processes have
    open. The files beside the cells have no pieces: SQLite's own check reads them at once."""

    place = CELLS_FILE

    def __init__(self, directory: Path, datastore: str, shards: int) -> None:
        self._path = directory / CELLS_FILE
        self._datastore, self._shards = datastore, shards

    def begin(self, into: Findings) -> list[int]:
        with reading(self._path) as connection:
            history_id = check_identity(connection, self._path, self._datastore, self._shards, into)
        for name in (STATE_FILE, INDEX_FILE):
            check_other(self._path.with_name(name), history_id, into)
        return list(range(self._shards))

    def check(self, shard: int, first: int, cells: int, into: Findings) -> Piece:
        with reading(self._path) as connection:
            head = head_of(connection, self._path, shard, into)
            if head is None:
                return Piece(None, 1)
            within = position_of(shard, first), position_of(shard, head.next_added_id)
            lengths = connection.execute(_LENGTHS, (*within, cells))
            ends, piece = piece_of(head, first, cells, lengths)
            check_ids(connection, self._path, shard, self._shards, ends, into, lambda _: None)
            self._check_keys(connection, shard, range(ends.log_start, ends.next_added_id), into)
            if piece.next_id is None:
                check_outside(connection, shard, head, into)
            return piece

    def _check_keys(
        self, connection: sqlite3.Connection, shard: int, ids: range, into: Findings
    ) -> None:
        within = position_of(shard, ids.start), position_of(shard, ids.start) + len(ids)
        for (added_id,) in connection.execute(_HIDDEN, within):
            text = f"shard {shard}, added_id {added_id}: the cell is not found by its key"
            into.add("key", CELLS_FILE, text, shard, range(added_id, added_id + 1))
