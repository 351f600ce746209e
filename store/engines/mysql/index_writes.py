"""Writes of index entries on a MySQL server, and the fences that they are written behind.

A write is one packet with the guard of :mod:`cellfeed.store.engines.mysql.guard`. The guard also
checks that the server holds the entries' shards, under the leader epoch that the caller believes.
Only the entries are locked, so puts continue meanwhile.

The rows of fences are read LOCK IN SHARE MODE before the guard, which is the transaction's first
consistent read. So the guard sees the values that they keep until the COMMIT, and a raise waits for
that.

Crash points: before the COMMIT nothing of it is there; after it everything. Repeating it changes
nothing (X1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pymysql.connections import Connection

from cellfeed.store.engines.contract.index_fences import Fences
from cellfeed.store.engines.contract.index_values import NOTHING, UNFENCED, Entry, IndexTable
from cellfeed.store.engines.contract.values import WriteTerms
from cellfeed.store.engines.index_sql import (
    columns_of,
    exact_condition,
    literal,
    values_of,
)
from cellfeed.store.engines.mysql.cells import parts
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.index_tables import MySqlIndexTables
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import ShardMoving, StaleView, StaleWriter
from cellfeed.store.failpoints import declare, failpoint

declare("mysql.index.before_commit", "mysql.index.after_commit")

FINDS_MAX: Final = 500
"""Places, or row keys, in one statement: keeps the optimiser on the key."""


class MySqlIndexWrites(MySqlIndexTables):
    """See the module."""

    def __init__(
        self, server: MySqlServer, meta: str, database: Callable[[int], str], shards: int
    ) -> None:
        super().__init__(server, meta, database, shards)
        self._fences = Fences([self])

    # --- fences -----------------------------------------------------------------------------------

    def fences(self, shards: Sequence[int]) -> dict[int, int]:
        return self._fences.read(shards)

    def raise_fences(self, shards: Sequence[int]) -> dict[int, int]:
        return self._fences.raise_(shards)

    def fence_numbers(self, shards: Sequence[int]) -> dict[int, int]:
        with self._server.connection() as connection:
            return self._fence_numbers(connection, shards) if self._has_fences(connection) else {}

    def set_fences(self, numbers: Mapping[int, int], terms: WriteTerms | None = None) -> None:
        with self._server.connection() as connection:
            if not self._has_fences(connection):
                columns = "shard INT UNSIGNED NOT NULL PRIMARY KEY, number BIGINT UNSIGNED NOT NULL"
                self._guard.alter(
                    connection,
                    f"CREATE TABLE IF NOT EXISTS {self._fence_table} ({columns}) ENGINE=InnoDB",
                    terms,
                )
        rows = [f"({int(shard)},{int(number)})" for shard, number in sorted(numbers.items())]
        behind = "ON DUPLICATE KEY UPDATE number = GREATEST(number, VALUES(number))"
        self._write(
            [],
            [
                f"INSERT INTO {self._fence_table} (shard, number) VALUES {','.join(part)} {behind}"
                for part in parts(rows)
            ],
            terms,
        )

    def _has_fences(self, connection: Connection[Any]) -> bool:
        return bool(query(connection, f"SHOW TABLES FROM {self._meta} LIKE 'index_fence'"))

    def _fence_numbers(self, connection: Connection[Any], shards: Sequence[int]) -> dict[int, int]:
        where = f" WHERE shard IN ({_numbers(shards)})" if len(shards) <= FINDS_MAX else ""
        wanted = set(shards)
        found = query(connection, f"SELECT shard, number FROM {self._fence_table}{where}")
        return {int(shard): int(number) for shard, number in found if int(shard) in wanted}

    # --- writing ----------------------------------------------------------------------------------

    def apply(
        self,
        table: IndexTable,
        entries: Mapping[int, Sequence[Entry]],
        fences: Mapping[int, int] = UNFENCED,
        terms: WriteTerms | None = None,
    ) -> None:
        self._write(sorted(entries), self._merges(table, entries), terms, fences)

    def _merges(self, table: IndexTable, entries: Mapping[int, Sequence[Entry]]) -> list[str]:
        statements = []
        behind = _merge_sql(table)
        names = ",".join(columns_of(table))
        for shard, each in sorted(entries.items()):
            # In one order, so that two writers of the same entries do not wait for each other.
            rows = [
                f"({','.join(map(literal, values_of(entry)))})"
                for entry in sorted(each, key=_place)
            ]
            statements += [
                f"INSERT INTO {self._database(shard)}.{table.name} ({names}) VALUES"
                f" {','.join(part)} ON DUPLICATE KEY UPDATE {behind}"
                for part in parts(rows)
            ]
        return statements

    def remove(
        self,
        table: IndexTable,
        entries: Mapping[int, Sequence[Entry]],
        fences: Mapping[int, int] = UNFENCED,
        instead: Mapping[int, Sequence[Entry]] = NOTHING,
        terms: WriteTerms | None = None,
    ) -> None:
        statements = [
            f"DELETE FROM {self._database(shard)}.{table.name} WHERE"
            f" {exact_condition(table, entry, '<=>')}"
            for shard, each in sorted(entries.items())
            for entry in sorted(each, key=_place)
        ] + self._merges(table, instead)
        self._write(sorted(entries), statements, terms, fences)

    def _write(
        self,
        shards: Sequence[int],
        statements: Sequence[str],
        terms: WriteTerms | None,
        fences: Mapping[int, int] = UNFENCED,
    ) -> None:
        """``shards``: those of the entries; none for statements on tables of no shard."""
        locks = (
            [
                f"SELECT number FROM {self._fence_table} WHERE shard IN"
                f" ({_numbers(sorted(fences))}) LOCK IN SHARE MODE"
            ]
            if fences
            else []
        )
        failpoint("mysql.index.before_commit")
        self._guard.commit(
            statements,
            terms,
            locks=locks,
            more=self._conditions(shards, terms, fences),
            explain_more=lambda connection: self._explain(connection, shards, terms, fences),
        )
        failpoint("mysql.index.after_commit")

    def _conditions(
        self, shards: Sequence[int], terms: WriteTerms | None, fences: Mapping[int, int]
    ) -> list[str]:
        counters = f"{self._meta}.shard_counter"
        found = []
        if shards:
            under = f" AND leader_epoch = {terms.leader_epoch}" if terms is not None else ""
            found.append(
                f"(SELECT COUNT(*) FROM {counters} WHERE shard IN ({_numbers(shards)}){under}) ="
                f" {len(shards)}"
            )
        if fences:
            same = " OR ".join(
                f"shard = {shard} AND number = {number}" for shard, number in sorted(fences.items())
            )
            found.append(f"(SELECT COUNT(*) FROM {self._fence_table} WHERE {same}) = {len(fences)}")
        return found

    def _explain(
        self,
        connection: Connection[Any],
        shards: Sequence[int],
        terms: WriteTerms | None,
        fences: Mapping[int, int],
    ) -> None:
        """Raises the error that these conditions stand for; returns where that has passed."""
        some = f" WHERE shard IN ({_numbers(shards)})" if shards else ""
        found = {
            int(shard): int(epoch)
            for shard, epoch in query(
                connection, f"SELECT shard, leader_epoch FROM {self._meta}.shard_counter{some}"
            )
        }
        if missing := set(shards) - set(found):
            raise ShardMoving(
                f"{self._server}: nothing written: it does not hold shard {min(missing)}"
            )
        for shard in shards:
            if terms is not None and found[shard] != terms.leader_epoch:
                raise StaleWriter(
                    f"{self._server}: nothing written: shard {shard} is in leader epoch"
                    f" {found[shard]}, the entries came with {terms.leader_epoch}"
                )
        if fences:
            numbers = self._fence_numbers(connection, list(fences))
            for shard, number in fences.items():
                if numbers.get(shard) != number:
                    raise StaleView(
                        f"{self._server}: nothing written: cells of shard {shard} were trimmed or"
                        " erased since the ones were read for the entries"
                    )


def _numbers(shards: Sequence[int]) -> str:
    return ",".join(map(str, shards))


def _merge_sql(table: IndexTable) -> str:
    """MySQL makes the assignments one after the other, each seeing those before: a register's ref
    key comes last of it."""
    sets = []
    for number, fields in enumerate(table.columns):
        ref = f"r{number}"
        newer = f"VALUES({ref}) IS NOT NULL AND ({ref} IS NULL OR VALUES({ref}) > {ref})"
        registers = [
            *(["live"] if number == 0 else []),
            *(f"f{field}" for field in fields if field),
            ref,
        ]
        sets += [f"{name} = IF({newer}, VALUES({name}), {name})" for name in registers]
    return ", ".join(sets)


def _place(entry: Entry) -> Any:
    return entry.place
