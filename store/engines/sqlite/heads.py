"""The heads of the logs in an embedded file, and which of them changed.

Numbers of a head only rise: the log start, the next id, the leader epoch, the count of erasures. So
a range of shards keeps its sum only while none of its heads changes. Each head that changed is read
again, and with it the others of its range; all other ranges cost one sum.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Final, NamedTuple

from cellfeed.store.engines.contract.values import Head, HeadChanges

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
