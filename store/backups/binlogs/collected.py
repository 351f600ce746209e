"""The cells of archives, collected on disk beside the other facts about their logs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Final

from cellfeed.store.backups.binlogs.transactions import AddedCell, Transaction
from cellfeed.store.backups.manifest import BackedLog, Manifest
from cellfeed.store.cells.cell import StoredCell, Triple
from cellfeed.store.engines.contract.values import Head, LocatedCell, Replica
from cellfeed.store.errors import ProtectData
from cellfeed.store.limits import SCAN_BYTES_MAX

SCHEMA: Final = """
CREATE TABLE cell (shard INT, added_id INT, leader_epoch INT, row_key BLOB, column_name TEXT,
    ref_key INT, created_at_us INT, body BLOB, PRIMARY KEY (shard, added_id, leader_epoch));
PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
"""

_ADD: Final = (
    "INSERT INTO cell VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET body ="
    " excluded.body WHERE row_key = ? AND column_name = ? AND ref_key = ? AND created_at_us = ?"
)

_REPLACE_BODY: Final = (
    "UPDATE cell SET body = ? WHERE shard = ? AND added_id = ? AND row_key = ? AND column_name = ?"
    " AND ref_key = ? AND created_at_us = ?"
)


class Collected:
    """The cells of archives, on disk; the other facts about logs, in memory."""

    def __init__(self, database: sqlite3.Connection, base: Manifest) -> None:
        self._database = database
        self._watermarks = {log.shard: log.watermark for log in base.logs}
        self.epochs = {log.shard: dict(log.epochs) for log in base.logs}
        self.log_starts = {log.shard: log.log_start for log in base.logs}
        self.dictionaries = list[bytes]()

    def add(self, transaction: Transaction, what: str) -> None:
        for begin in transaction.epochs:
            known = self.epochs[begin.shard].setdefault(begin.leader_epoch, begin.first_added_id)
            if known != begin.first_added_id:
                raise _two_lives(what, begin.shard, f"leader epoch {begin.leader_epoch} begins")
        for shard, log_start in transaction.log_starts:
            self.log_starts[shard] = max(self.log_starts[shard], log_start)
        self.dictionaries += transaction.dictionaries
        for each in transaction.cells:
            if each.cell.added_id >= self._watermarks[each.shard]:
                if each.leader_epoch < 0:
                    self._replace_body(each)  # put back by a repair
                else:
                    self._add(each, what)
        for each in transaction.bodies:
            self._replace_body(each)

    def _add(self, added: AddedCell, what: str) -> None:
        added_id, row_key, column, ref_key, at_us, body = added.cell
        place = added.shard, added_id, added.leader_epoch
        done = self._database.execute(
            _ADD,
            (*place, row_key, column, ref_key, at_us, body, row_key, column, ref_key, at_us),
        )
        if done.rowcount != 1:
            raise _two_lives(what, added.shard, f"id {added_id} is another cell")

    def _replace_body(self, changed: AddedCell) -> None:
        added_id, row_key, column, ref_key, at_us, body = changed.cell
        self._database.execute(
            _REPLACE_BODY,
            (body, changed.shard, added_id, row_key, column, ref_key, at_us),
        )

    def start_of(self, log: BackedLog) -> int:
        """Where the tail begins."""
        return max(log.watermark, self.log_starts[log.shard])

    def end_of(self, log: BackedLog) -> int:
        """Behind the last id up to which every id is there."""
        end = self.start_of(log)
        for added_id, leader_epoch in self._ids(log.shard, end):
            if leader_epoch == self.epoch_of(log.shard, added_id):
                if added_id != end:
                    break
                end += 1
        return end

    def last_behind(self, shard: int, end: int) -> int | None:
        """The last id behind a missing one; None where nothing is missing."""
        ids = [
            added_id
            for added_id, leader_epoch in self._ids(shard, end)
            if leader_epoch == self.epoch_of(shard, added_id)
        ]
        return max(ids, default=None)

    def columns(self, shard: int, first: int, end: int) -> list[str]:
        """Of the cells from an id up to another one."""
        rows = self._database.execute(
            "SELECT DISTINCT column_name FROM cell WHERE shard = ? AND added_id >= ? AND added_id <"
            " ?",
            (shard, first, end),
        )
        return sorted(name for (name,) in rows)

    def scan(self, shard: int, location: int, limit: int) -> list[StoredCell]:
        """As of an engine."""
        rows = self._database.execute(
            "SELECT leader_epoch, added_id, row_key, column_name, ref_key, created_at_us, body FROM"
            " cell WHERE shard = ? AND added_id >= ? AND added_id < ? ORDER BY added_id",
            (shard, location, location + limit),
        )
        found, found_bytes = list[StoredCell](), 0
        for leader_epoch, *row in rows:
            if leader_epoch == self.epoch_of(shard, row[0]):
                cell = StoredCell(*row)
                found.append(cell)
                found_bytes += len(cell.body)
                if found_bytes >= SCAN_BYTES_MAX:
                    break
        return found

    def heads(self, shards: Sequence[int] | None = None) -> dict[int, Head]:
        """Nothing trims an archive."""
        return {}

    def get(
        self, triples: Sequence[Triple], read_from: Replica = Replica.MASTER
    ) -> list[LocatedCell | None]:
        """There is no better copy of a cell."""
        return [None] * len(triples)

    def _ids(self, shard: int, first: int) -> Iterator[tuple[int, int]]:
        yield from self._database.execute(
            "SELECT added_id, leader_epoch FROM cell WHERE shard = ? AND added_id >= ? ORDER BY"
            " added_id",
            (shard, first),
        )

    def epoch_of(self, shard: int, added_id: int) -> int:
        """The leader epoch that an id belongs to."""
        return max(epoch for epoch, first in self.epochs[shard].items() if first <= added_id)


def _two_lives(what: str, shard: int, how: str) -> ProtectData:
    return ProtectData(
        f"nothing restored: {what}: shard {shard}: {how} elsewhere than in an earlier piece, in the"
        " same leader epoch: the binlogs are of two lives of a server, whose files were put back"
        " from a copy between them. Move the folder of that archive out of the folder of backups,"
        " and restore the newest backup"
    )
