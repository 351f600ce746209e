"""The counters of shards, locked for a transaction that writes: their next added_ids, the leader
epoch that they must have, and the moment that the transaction's cells get."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pymysql.connections import Connection

from cellfeed.store.engines.contract.values import WriteTerms
from cellfeed.store.engines.mysql.cells import sql_moment
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.guard import Guard
from cellfeed.store.engines.mysql.statements import BEGIN, query, query_all
from cellfeed.store.errors import ShardMoving, StaleWriter, StorageUnavailable

ATTEMPTS_MAX: Final = 3
PAUSE_S: Final = 0.01
"""A transaction that gave way to another one is run again, after a random pause of at most so many
seconds a time: longer than the other takes to commit."""


class DictionaryRetired(Exception):
    """One of the put's dictionaries is not in use any more. Nothing was written."""


@dataclass
class Counter:
    """A locked counter: its next added_id as it was, and as this transaction moves it."""

    first: int
    next_added_id: int
    created_at_us: int
    erasures: int


class CounterLocks:
    """Locks the counters of one server, behind the guard. ``meta`` is the meta database, a checked
    name."""

    def __init__(
        self, server: MySqlServer, meta: str, clock_us: Callable[[], int] | None = None
    ) -> None:
        self._server = server
        self._meta = meta
        self.guard = Guard(server, meta)
        # The master's own clock, unless a test gives another.
        self._clock_us = clock_us

    def lock(
        self,
        connection: Connection[Any],
        shards: Sequence[int],
        terms: WriteTerms | None,
        dictionary_ids: Collection[int] = (),
    ) -> dict[int, Counter]:
        """Begins the transaction, and locks and reads the counters of shards (ascending), behind
        the guard. ``dictionary_ids``: of dictionaries that must be in use. Raises
        StorageUnavailable, StaleWriter (nothing written, the transaction has ended) where the
        server does not hold them, or the guard refuses the write; DictionaryRetired, likewise."""
        for _ in range(ATTEMPTS_MAX):
            counters = self._locked(connection, shards, terms, dictionary_ids)
            if counters is not None:
                return counters
            query(connection, "ROLLBACK")
            self.guard.explain(connection, terms)
        raise StorageUnavailable(
            f"{self._server}: nothing written: its role or its settings change all the time; try"
            " again"
        )

    def _locked(
        self,
        connection: Connection[Any],
        shards: Sequence[int],
        terms: WriteTerms | None,
        dictionary_ids: Collection[int],
    ) -> dict[int, Counter] | None:
        """None where the guard does not hold."""
        numbers = ",".join(map(str, shards))
        moment_us = (
            "GREATEST(CAST(UNIX_TIMESTAMP(last_created_at) * 1000000 AS UNSIGNED),"
            f" {self._now_us()})"
        )
        # The guard is part of each row, for beside an aggregate MariaDB 10.11 gives a variable as
        # 0.
        counter = (
            f"shard, next_added_id, leader_epoch, IF({self.guard.condition(terms)}, 1, 0),"
            f" {moment_us}, erasures"
        )
        locked = (
            f"SELECT * FROM {self._meta}.shard_counter WHERE shard IN ({numbers}) ORDER BY shard"
            f" LIMIT {len(shards)} FOR UPDATE"
        )
        # One value for all counters: the driver takes many times as long over a row as this over
        # its part of a text.
        statements = [
            BEGIN,
            (
                f"SELECT GROUP_CONCAT(CONCAT_WS(',', {counter}) SEPARATOR ';') FROM ({locked})"
                " AS locked"
            ),
        ]
        if dictionary_ids:
            # Behind the locks, so it sees each turn that was gone when the last writer let go.
            ids = ",".join(map(str, sorted(dictionary_ids)))
            statements.append(
                f"SELECT COUNT(DISTINCT dictionary_id) FROM {self._meta}.dictionary_turn WHERE"
                f" dictionary_id IN ({ids})"
            )
        _, [(joined,)], *in_use = query_all(connection, statements)
        if in_use and int(in_use[0][0][0]) < len(dictionary_ids):
            query(connection, "ROLLBACK")
            raise DictionaryRetired
        counters = {}
        for row in joined.split(";") if joined else ():
            shard, first, epoch, guarded, created_at_us, erasures = row.split(",")
            if not int(guarded):
                return None
            if terms is not None and int(epoch) != terms.leader_epoch:
                query(connection, "ROLLBACK")
                reason = (
                    f"shard {int(shard)} is in leader epoch {int(epoch)}, the write came with"
                    f" {terms.leader_epoch}"
                )
                raise StaleWriter(f"{self._server}: nothing written: {reason}")
            counters[int(shard)] = Counter(
                int(first), int(first), int(created_at_us), int(erasures)
            )
        if missing := set(shards) - set(counters):
            query(connection, "ROLLBACK")
            raise ShardMoving(
                f"{self._server}: nothing written: it does not hold shard {min(missing)}"
            )
        return counters

    def _now_us(self) -> str:
        return (
            str(self._clock_us())
            if self._clock_us
            else "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS UNSIGNED)"
        )


def counters_update(meta: str, counters: Mapping[int, Counter]) -> str:
    """The statement that moves the counters which gave ids. ``meta`` is a checked name."""
    moved = {
        shard: counter
        for shard, counter in counters.items()
        if counter.next_added_id > counter.first
    }
    ids = "".join(f" WHEN {shard} THEN {counter.next_added_id}" for shard, counter in moved.items())
    moment_of = sql_moments(moved)
    times = "".join(
        f" WHEN {shard} THEN {moment_of[counter.created_at_us]}" for shard, counter in moved.items()
    )
    return (
        f"UPDATE {meta}.shard_counter SET next_added_id = CASE shard{ids} END,"
        f" last_created_at = CASE shard{times} END WHERE shard IN ({','.join(map(str, moved))})"
    )


def sql_moments(counters: Mapping[int, Counter]) -> dict[int, str]:
    """The literal of each moment: mostly one for all shards."""
    return {
        at_us: sql_moment(at_us)
        for at_us in {counter.created_at_us for counter in counters.values()}
    }
