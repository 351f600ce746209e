"""The tables of indexes on a MySQL server: one in each shard's database."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from pymysql.connections import Connection

from cellfeed.store.engines.contract.index_values import IndexTable
from cellfeed.store.engines.contract.values import WriteTerms
from cellfeed.store.engines.index_sql import (
    columns_of,
)
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.guard import Guard
from cellfeed.store.engines.mysql.statements import BEGIN, query
from cellfeed.store.failpoints import declare, failpoint

declare("mysql.index.listed")


class MySqlIndexTables:
    """``meta`` and ``database`` give checked names; ``shards``: of the datastore."""

    def __init__(
        self, server: MySqlServer, meta: str, database: Callable[[int], str], shards: int
    ) -> None:
        self._server = server
        self._guard = Guard(server, meta)
        self._shards = shards
        self._meta = meta
        self._database = database
        self._fence_table = f"{meta}.index_fence"

    def create(self, table: IndexTable, terms: WriteTerms | None = None) -> frozenset[int]:
        types = [
            "BINARY(16) NOT NULL",
            "TINYINT NOT NULL",
            "BIGINT NOT NULL",
            *["BIGINT NULL"] * (len(table.columns) - 1),
        ]
        fields = [
            "BIGINT NULL" if width is None else f"VARBINARY({width}) NULL" for width in table.widths
        ]
        fields[0] = fields[0].replace(" NULL", " NOT NULL")
        columns = [
            f"{name} {kind}" for name, kind in zip(columns_of(table), types + fields, strict=True)
        ]
        # InnoDB puts the primary key behind every other one: (f0, f1) is (f0, f1, row_key).
        keys = [
            "PRIMARY KEY (f0, row_key)",
            *(f"KEY by_f{number} (f0, f{number})" for number in range(1, len(table.widths))),
        ]
        with self._server.connection() as connection:
            sql = (
                "SELECT TABLE_SCHEMA FROM information_schema.TABLES WHERE TABLE_NAME ="
                f" '{table.name}'"
            )
            databases = {str(database) for (database,) in query(connection, sql)}
            there = frozenset(
                shard for shard in self._served(connection) if self._database(shard) in databases
            )
        made = f"{table.name} ({', '.join(columns + keys)}) ENGINE=InnoDB"
        return there | self._on_each_shard(
            lambda database: f"CREATE TABLE IF NOT EXISTS {database}.{made}", terms, without=there
        )

    def complete(self, table: IndexTable) -> None:
        """Nothing: InnoDB keeps the keys of a table from its making, with a buffer for changes."""

    def drop(self, table: IndexTable, terms: WriteTerms | None = None) -> frozenset[int]:
        return self._on_each_shard(
            lambda database: f"DROP TABLE IF EXISTS {database}.{table.name}", terms
        )

    def _on_each_shard(
        self,
        statement: Callable[[str], str],
        terms: WriteTerms | None,
        without: Collection[int] = (),
    ) -> frozenset[int]:
        """Runs it for the shards that are served here, and gives those. Each shard's counter is
        locked meanwhile, by a connection of its own: a statement about tables ends its transaction.
        So no move gives the shard's tables other names in between: one would be made beside
        another, or be found missing."""
        done = set()
        with self._server.connection() as locking, self._server.connection() as connection:
            self._guard.settle(
                connection, terms
            )  # also where nothing is left to do: the answer says that it is done
            shards = self._served(connection)
            failpoint("mysql.index.listed")
            for shard in shards:
                if shard in without:
                    continue
                query(locking, BEGIN)
                if query(
                    locking,
                    f"SELECT shard FROM {self._meta}.shard_counter WHERE shard = {shard} FOR"
                    " UPDATE",
                ):
                    self._guard.alter(connection, statement(self._database(shard)), terms)
                    done.add(shard)
                query(locking, "ROLLBACK")
        return frozenset(done)

    def _served(self, connection: Connection[Any]) -> list[int]:
        return [
            int(shard)
            for (shard,) in query(
                connection, f"SELECT shard FROM {self._meta}.shard_counter ORDER BY shard"
            )
        ]
