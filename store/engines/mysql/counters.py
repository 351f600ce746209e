"""The shards' counters on one server, read: heads, the change token, and both with a state entry
for followers of a log.

A follower looks at every node several times for each commit: each look is one statement with one
row. It says which ranges of shards have another sum than at the look before, and gives the counters
of these ranges. All counters of a shard only rise, so a range keeps its sum only while none of its
counters changes. A look that cannot be completed so, because a whole range has left the server,
reads all counters.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pymysql.connections import Connection

from cellfeed.store.engines.contract.values import Head, HeadChanges, Look, changed_since
from cellfeed.store.engines.mysql.cells import MICROSECONDS
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.semi_sync import SEMI_SYNC_SETTINGS
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

RANGE_SHARDS: Final = 64
"""Shards with a common sum: of 4,096 shards 64 sums are compared, and 64 rows read for a put."""

_SHARD_WEIGHT: Final = 1 << 64
"""Of a CRC of each shard's number in the change token: a shard that has come, or gone, changes the
token, for any values of its counters."""


class _Seen(NamedTuple):
    """A look that was answered: the heads, and the part of each range in the change token."""

    heads: Mapping[int, Head]
    sums: Mapping[int, int]


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
        joined = f"GROUP_CONCAT(CONCAT_WS(',', {', '.join(fields)}) SEPARATOR ';')"
        self._heads = f"SELECT {joined} FROM {counters}"
        weighted = (
            f"next_added_id + log_start + erasures + (leader_epoch + epoch_base) * {_EPOCH_WEIGHT}"
            f" + CRC32(shard) * {_SHARD_WEIGHT}"
        )
        self._token = f"SELECT COALESCE(SUM({weighted}), 0) FROM {counters}"
        first = f"ranges.number * {RANGE_SHARDS}"
        self._of_ranges = (
            f"SELECT CONCAT((SELECT COUNT(*) FROM {counters}), '|', COALESCE({joined}, '')) FROM"
            f" (SELECT number FROM (SELECT shard DIV {RANGE_SHARDS} AS number, SUM({weighted}) AS"
            f" total FROM {counters} GROUP BY number) AS sums WHERE (number, total) NOT IN"
            f" ({{known}})) AS ranges JOIN {counters} ON shard >= {first} AND shard < {first} +"
            f" {RANGE_SHARDS}"
        )

    def heads(self, shards: Sequence[int] | None = None) -> dict[int, Head]:
        wanted = "" if shards is None else f" WHERE shard IN ({','.join(map(str, shards))})"
        with self._server.connection() as connection:
            [(joined,)] = query(connection, self._heads + wanted)
        return _heads(joined)

    def look(self, state_key: str, seen: object | None) -> Look:
        """One statement for everything that a watcher asks; ``seen`` is the token of the look
        before.

        A follower of a log looks at every node several times for each commit. A second result would
        cost the driver as much as the first one: so the answer is one row. Its text is empty when
        no counter has changed.
        """
        before = seen if isinstance(seen, _Seen) and seen.sums else None
        heads = f"({self._heads})" if before is None else self._changed(before.sums)
        sql = f"SELECT ({self._state.select_value(state_key)}), {heads}"
        with self._server.connection() as connection:
            waiting_sql = (
                _WAITS_FOR_MINIONS if is_mariadb(connection) else "1"
            )  # MySQL servers have no minions here
            [(entry, joined, waiting)] = query(connection, f"{sql}, {waiting_sql}")
        confirmed = bool(int(waiting))
        if before is None:
            # The token is made of the same rows, not of another look at them: the next look finds a
            # change in between.
            found = _heads(joined)
            return Look(entry, _Seen(found, _sums(found)), found, confirmed)
        if not joined:
            return Look(entry, before, None, confirmed)
        count, _, rows = joined.partition("|")
        now, changed = _merged(before, _heads(rows))
        if len(now.heads) != int(count):
            return self.look(state_key, None)
        return Look(entry, now, now.heads, confirmed, changed)

    def _changed(self, sums: Mapping[int, int]) -> str:
        """How many counters there are, and those of the ranges that have other sums; empty while
        the token is the same."""
        known = ",".join(f"({each},{total})" for each, total in sums.items())
        return (
            f"CASE WHEN ({self._token}) = {sum(sums.values())} THEN '' ELSE"
            f" ({self._of_ranges.format(known=known)}) END"
        )

    def heads_since(self, mark: object | None, token: int) -> HeadChanges:
        """As the contract's. ``token`` was read before the heads, as in the embedded engine."""
        before = mark if isinstance(mark, HeadChanges) else None
        if before is not None and before.mark == token:
            return HeadChanges({}, before)
        heads = self.heads()
        changed = heads if before is None else changed_since(before.heads, heads)
        return HeadChanges(changed, HeadChanges(heads, token))

    def leader_epochs(self, shard: int) -> list[tuple[int, int]]:
        """As the contract's."""
        sql = (
            f"SELECT leader_epoch, first_added_id FROM {self._meta}.leader_epoch WHERE shard ="
            f" {shard} ORDER BY leader_epoch"
        )
        return [(int(epoch), int(first)) for epoch, first in self._server.rows(sql)]

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


def _sums(heads: Mapping[int, Head]) -> dict[int, int]:
    """By range of shards."""
    sums: dict[int, int] = {}
    for shard, head in heads.items():
        each = shard // RANGE_SHARDS
        sums[each] = sums.get(each, 0) + _weighted(shard, head)
    return sums


def _merged(before: _Seen, found: Mapping[int, Head]) -> tuple[_Seen, set[int]]:
    """The look with all counters of the ranges that were found; and which shards changed."""
    sums = _sums(found)
    heads = dict(before.heads)
    changed = {shard for shard, head in found.items() if heads.get(shard) != head}
    for each in sums:
        for shard in range(each * RANGE_SHARDS, (each + 1) * RANGE_SHARDS):
            if shard in heads and shard not in found:
                del heads[shard]
                changed.add(shard)
    return _Seen({**heads, **found}, {**before.sums, **sums}), changed


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
