"""The shards' counters on one server, read: heads, the change token, and both with a state entry
for followers of a log.

A follower looks at every node several times for each commit: each look is one statement with one
row.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final

from pymysql.connections import Connection

from cellfeed.store.engines.contract.values import Head, Look
from cellfeed.store.engines.mysql.cells import MICROSECONDS
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.replication import SEMI_SYNC_SETTINGS
from cellfeed.store.engines.mysql.state import MySqlState
from cellfeed.store.engines.mysql.statements import is_mariadb, query
from cellfeed.store.errors import ShardMoving

_EPOCH_WEIGHT: Final = 1 << 32
"""Of a leader epoch in the change token, a weighted sum of all counters. They only rise, so it
changes with any of them; on a node that was cloned after it lost a tail, ids have fallen and epochs
have risen, which must not cancel out."""

_WAITS_FOR_MINIONS: Final = " AND ".join(
    f"@@GLOBAL.{name} = {value}" for name, value in SEMI_SYNC_SETTINGS.items()
)

_SHARD_WEIGHT: Final = 1 << 64
"""Of a CRC of each shard's number in the change token: a shard that has come, or gone, changes the
token, for any values of its counters."""


class MySqlCounters:
    """Of the meta database ``meta`` of a server."""

    def __init__(self, server: MySqlServer, meta: str, state: MySqlState) -> None:
        self._server = server
        self._meta = meta
        self._state = state
        self.table = counters = f"{self._meta}.shard_counter"
        # One value for all counters: taking thousands of rows apart costs the driver ten times as
        # much as splitting a text.
        fields = (
            "shard",
            "log_start",
            "next_added_id",
            "leader_epoch + epoch_base",
            MICROSECONDS.format("last_created_at"),
            "erasures",
        )
        self._heads = (
            f"SELECT GROUP_CONCAT(CONCAT_WS(',', {', '.join(fields)}) SEPARATOR ';') FROM"
            f" {counters}"
        )
        weighted = (
            f"next_added_id + log_start + erasures + (leader_epoch + epoch_base) * {_EPOCH_WEIGHT}"
            f" + CRC32(shard) * {_SHARD_WEIGHT}"
        )
        self._token = f"SELECT COALESCE(SUM({weighted}), 0) FROM {counters}"
        self._unchanged = f"SELECT '' FROM {counters} LIMIT 1"

    def heads(self, shards: Sequence[int] | None = None) -> dict[int, Head]:
        wanted = "" if shards is None else f" WHERE shard IN ({','.join(map(str, shards))})"
        with self._server.connection() as connection:
            [(joined,)] = query(connection, self._heads + wanted)
        return _heads(joined)

    def look(self, state_key: str, seen: int | None) -> Look:
        """One statement for everything that a watcher asks; ``seen`` is the token of the look
        before.

        A follower of a log looks at every node several times for each commit. A second result would
        cost the driver as much as the first one: so the answer is one row. Its text is empty when
        there are counters and none has changed, NULL when there are none.
        """
        changed = "" if seen is None else f" WHERE ({self._token}) <> {seen}"
        sql = (
            f"SELECT ({self._state.select_value(state_key)}), COALESCE(({self._heads}{changed}),"
            f" ({self._unchanged}))"
        )
        with self._server.connection() as connection:
            waiting_sql = (
                _WAITS_FOR_MINIONS if is_mariadb(connection) else "1"
            )  # MySQL servers have no minions here
            [(entry, joined, waiting)] = query(connection, f"{sql}, {waiting_sql}")
        confirmed = bool(int(waiting))
        if seen is not None and joined is not None and not joined:
            return Look(entry, seen, None, confirmed)
        heads = _heads(joined)
        # From the same rows, not from another look at them: the next look finds a change in
        # between.
        return Look(
            entry, sum(_weighted(shard, head) for shard, head in heads.items()), heads, confirmed
        )

    def change_token(self) -> int:
        with self._server.connection() as connection:
            [(token,)] = query(connection, self._token)
        return int(token or 0)

    def log_start(self, connection: Connection[Any], shard: int) -> int:
        [start] = self.fields_of(connection, shard, "log_start")
        return int(start)

    def next_added_id(self, connection: Connection[Any], shard: int) -> int:
        [next_id] = self.fields_of(connection, shard, "next_added_id")
        return int(next_id)

    def fields_of(self, connection: Connection[Any], shard: int, fields: str) -> Sequence[Any]:
        """Raises ShardMoving when the counter is not there."""
        rows = query(connection, f"SELECT {fields} FROM {self.table} WHERE shard = {shard}")
        if not rows:
            raise self.moved(shard)
        return rows[0]

    def moved(self, shard: int) -> ShardMoving:
        """The error where a shard has no counter."""
        return ShardMoving(f"{self._server} does not hold shard {shard}")


def _weighted(shard: int, head: Head) -> int:
    """A shard's part of the change token."""
    crc = zlib.crc32(str(shard).encode())
    return (
        head.next_added_id
        + head.log_start
        + head.erasures
        + head.leader_epoch * _EPOCH_WEIGHT
        + crc * _SHARD_WEIGHT
    )


def _heads(joined: str | None) -> dict[int, Head]:
    """Without one when there are no counters."""
    heads = {}
    for each in joined.split(";") if joined else ():
        shard, log_start, next_added_id, leader_epoch, created_at_us, erasures = map(
            int, each.split(",")
        )
        heads[shard] = Head(
            log_start, next_added_id, next_added_id, leader_epoch, created_at_us, erasures
        )
    return heads
