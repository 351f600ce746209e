"""The state table on a MySQL master (E11): one row holds the revision and is the lock of every
write.

A commit is one guarded transaction of two round trips (:mod:`cellfeed.store.engines.mysql.guard`):
lock the revision, ask the guard and read the expected versions; then write and COMMIT. So an offset
or a lease that was acknowledged is on a minion where a cell would be, and no fenced master takes
one.

No version is given twice. Within a history the revision only rises. A promotion and a restore begin
another history, and skip more revisions than lost commits can have used
(:func:`cellfeed.store.engines.contract.state_limits.revision_of_next_history`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from cellfeed.store.engines.contract.state_limits import check_state_write
from cellfeed.store.engines.contract.values import StateEntry, WriteTerms
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.errors import commit_failed, error_code, failed
from cellfeed.store.engines.mysql.guard import Guard
from cellfeed.store.engines.mysql.statements import BEGIN, commit_script, query, query_all
from cellfeed.store.failpoints import marked


class MySqlState:
    """:class:`cellfeed.store.engines.contract.state_table.NodeStateTable`. Keys are compared as
    UTF-8 bytes. ``terms``: of the commits that bring none of their own."""

    def __init__(self, server: MySqlServer, meta: str, terms: WriteTerms | None = None) -> None:
        self._server = server
        self._guard = Guard(server, meta)
        self._meta = meta
        self._terms = terms

    def get(self, key: str) -> StateEntry | None:
        with self._server.connection() as connection:
            rows = query(
                connection,
                f"SELECT value, version FROM {self._meta}.state_entry WHERE entry_key ="
                f" {_literal(key)}",
            )
        return StateEntry(key, rows[0][0], int(rows[0][1])) if rows else None

    def select_value(self, key: str) -> str:
        """The statement that reads an entry's value."""
        return f"SELECT value FROM {self._meta}.state_entry WHERE entry_key = {_literal(key)}"

    def list(self, prefix: str) -> list[StateEntry]:
        low = _literal(prefix)
        sql = (
            f"SELECT entry_key, value, version FROM {self._meta}.state_entry WHERE entry_key >="
            f" {low} AND entry_key < CONCAT({low}, X'FF') ORDER BY entry_key"
        )
        with self._server.connection() as connection:
            return [
                StateEntry(key.decode(), value, int(version))
                for key, value, version in query(connection, sql)
            ]

    @marked("cas.state")
    def commit(
        self,
        write: Mapping[str, bytes | None],
        expect: Mapping[str, int | None] | None = None,
        terms: WriteTerms | None = None,
    ) -> int | None:
        check_state_write(write)
        terms = terms if terms is not None else self._terms
        revisions: list[int] = []

        def once(connection: Connection[Any]) -> bool:
            revision, expected = self._begin(connection, expect or {}, terms)
            if expected is None:
                return False
            if expected:
                self._write(connection, write, revision, terms)
                revisions.append(revision)
            return True

        self._guard.until_it_passes(once)
        return revisions[0] if revisions else None

    def _begin(
        self,
        connection: Connection[Any],
        expect: Mapping[str, int | None],
        terms: WriteTerms | None,
    ) -> tuple[int, bool | None]:
        """Begins a transaction, in one round trip: the revision that it would write, and whether
        the expected versions hold. Where they do not, or the guard does not (None), it has ended.
        """
        keys = ",".join(map(_literal, expect)) or "NULL"
        statements = [
            BEGIN,
            f"SELECT revision + 1 FROM {self._meta}.state_revision FOR UPDATE",
            self._guard.statement(terms),
            f"SELECT entry_key, version FROM {self._meta}.state_entry WHERE entry_key IN ({keys})",
        ]
        try:
            _, [(revision,)], _, rows = query_all(connection, statements)
        except (pymysql.err.MySQLError, OSError) as error:
            if error_code(error) != ER.SUBQUERY_NO_1_ROW:
                raise failed(self._server, error) from error
            query(connection, "ROLLBACK")
            self._guard.explain(connection, terms)
            return 0, None
        versions = {key.decode(): int(version) for key, version in rows}
        expected = all(versions.get(key) == version for key, version in expect.items())
        if not expected:
            query(connection, "ROLLBACK")
        return int(revision), expected

    def _write(
        self,
        connection: Connection[Any],
        write: Mapping[str, bytes | None],
        revision: int,
        terms: WriteTerms | None,
    ) -> None:
        statements = [f"UPDATE {self._meta}.state_revision SET revision = {revision}"]
        for key, value in write.items():
            if value is None:
                statements.append(
                    f"DELETE FROM {self._meta}.state_entry WHERE entry_key = {_literal(key)}"
                )
            else:
                statements.append(
                    f"REPLACE INTO {self._meta}.state_entry VALUES ({_literal(key)},"
                    f" X'{value.hex()}', {revision})"
                )
        try:
            commit_script(connection, statements, self._guard.after_commit(terms), silent=True)
        except (pymysql.err.MySQLError, OSError) as error:
            raise commit_failed(self._server, error) from error

    def now_us(self) -> int:
        with self._server.connection() as connection:
            [(now_us,)] = query(
                connection, "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS UNSIGNED)"
            )
        return int(now_us)


def _literal(text: str) -> str:
    return f"X'{text.encode().hex()}'"
