"""The heads of the logs in an embedded file, and which of them changed.

Numbers of a head only rise: the log start, the next id, the leader epoch, the count of erasures. So
a range of shards keeps its sum only while none of its heads changes. Each head that changed is read
again, and with it the others of its range; all other ranges cost one sum.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from cellfeed.store.cells.sharding import check_shard
from cellfeed.store.engines.contract.values import Head, HeadChanges
from cellfeed.store.engines.sqlite.connect import sqlite_error
from cellfeed.store.engines.sqlite.files import SqliteFile
from cellfeed.store.errors import DataDamaged

RANGE_SHARDS: Final = 64
"""Shards with a common sum. Of 4,096 shards 64 sums are compared, and 64 rows read for a put."""

_HEAD: Final = (
    "SELECT shard, log_start, next_added_id, next_added_id, leader_epoch, last_created_at_us,"
    " erasures FROM shard_counter"
)
_SUMS: Final = (
    "WITH RECURSIVE range(first) AS (SELECT 0 UNION ALL SELECT first + :length FROM range"
    " WHERE first + :length < :shards) SELECT first, (SELECT sum(log_start + next_added_id +"
    " leader_epoch + erasures) FROM shard_counter WHERE shard >= first AND shard < first + :length)"
    " FROM range"
)


class Mark(NamedTuple):
    """A look: the token from before it, and the sum of each range by its first shard."""

    token: int
    sums: dict[int, int | None]


def heads_of(
    connection: sqlite3.Connection, shards: Iterable[int] | None = None
) -> dict[int, Head]:
    """The heads of these shards, or of all; a shard that has lost its counter is left out."""
    if shards is None:
        rows = connection.execute(_HEAD).fetchall()
    else:
        rows = [
            row
            for shard in shards
            for row in connection.execute(f"{_HEAD} WHERE shard = ?", (shard,))
        ]
    return {shard: Head(*ends) for shard, *ends in rows}


def changed_heads(
    connection: sqlite3.Connection, shards: int, token: int, before: Mark | None
) -> HeadChanges:
    """The heads that changed since ``before``, or all. ``connection`` sees one state of the file.
    ``token`` was read before that state."""
    sums: dict[int, int | None] = dict(
        connection.execute(_SUMS, {"length": RANGE_SHARDS, "shards": shards}).fetchall()
    )
    mark = Mark(token, sums)
    if before is None:
        return HeadChanges(heads_of(connection), mark)
    heads: dict[int, Head] = {}
    for first, total in sums.items():
        if total != before.sums[first]:
            rows = connection.execute(
                f"{_HEAD} WHERE shard >= ? AND shard < ?", (first, first + RANGE_SHARDS)
            )
            heads |= {shard: Head(*ends) for shard, *ends in rows}
    return HeadChanges(heads, mark)


def leader_epochs_of(connection: sqlite3.Connection, shard: int) -> list[tuple[int, int]]:
    """As the contract's."""
    sql = (
        "SELECT leader_epoch, first_added_id FROM leader_epoch WHERE shard = ? ORDER BY"
        " leader_epoch"
    )
    return connection.execute(sql, (shard,)).fetchall()


class SqliteHeads:
    """The heads in a file with cells, and a token that every commit changes. Any number of
    threads."""

    def __init__(self, file: SqliteFile, shards: int) -> None:
        self._file = file
        self._shards = shards
        # data_version counts the commits of other connections: this one only ever asks.
        self._watcher = file.another()
        self._watcher_lock = threading.Lock()

    def heads(self, shards: Sequence[int] | None) -> dict[int, Head]:
        """As the contract's. Raises DataDamaged."""
        wanted = (
            None
            if shards is None
            else dict.fromkeys(check_shard(shard, self._shards) for shard in shards)
        )
        with self._file.snapshot() as connection:
            return self._whole(
                heads_of(connection, wanted), self._shards if wanted is None else len(wanted)
            )

    def since(self, mark: object | None, token: int) -> HeadChanges:
        """As the contract's. ``token`` was read before the heads: a commit in between changes the
        token of the next look, which finds its heads once more."""
        before = mark if isinstance(mark, Mark) else None
        if before is not None and before.token == token:
            return HeadChanges({}, before)
        with self._file.snapshot() as connection:
            changes = changed_heads(connection, self._shards, token, before)
        if before is None:
            self._whole(changes.heads, self._shards)
        return changes

    def change_token(self) -> int:
        self._file.check_process()
        self._file.look()  # in a file that was replaced nothing changes any more
        try:
            with self._watcher_lock:
                [(token,)] = self._watcher.execute("PRAGMA data_version").fetchall()
        except sqlite3.Error as error:
            raise sqlite_error(self._file.path, "read failed: ", error) from error
        return int(token)

    def close(self) -> None:
        with self._watcher_lock:
            self._watcher.close()

    def _whole(self, heads: dict[int, Head], count: int) -> dict[int, Head]:
        if len(heads) != count:
            raise DataDamaged(
                f"{self._file.path} has lost counters of shards: restore it from a backup"
            )
        return heads
