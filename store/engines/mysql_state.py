"""The state table on a MySQL master (E11): one row holds the revision and is the lock of every write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pymysql

from store.engines.contract import StateEntry
from store.engines.mysql_connections import MySqlServer, commit_script, query
from store.engines.mysql_errors import commit_failed
from store.engines.state_limits import check_state_write


class MySqlState:
    """:class:`store.engines.contract.StateTable`. Keys are compared as UTF-8 bytes."""

    def __init__(self, server: MySqlServer, meta: str) -> None:
        self._server = server
        self._meta = meta

    def get(self, key: str) -> StateEntry | None:
        with self._server.connection() as connection:
            rows = query(connection, f"SELECT value, version FROM {self._meta}.state_entry WHERE entry_key = {_literal(key)}")
        return StateEntry(key, rows[0][0], int(rows[0][1])) if rows else None

    def select_value(self, key: str) -> str:
        """The statement that reads an entry's value."""
        return f"SELECT value FROM {self._meta}.state_entry WHERE entry_key = {_literal(key)}"

    def list(self, prefix: str) -> list[StateEntry]:
        low = _literal(prefix)
        sql = f"SELECT entry_key, value, version FROM {self._meta}.state_entry WHERE entry_key >= {low} AND entry_key < CONCAT({low}, X'FF') ORDER BY entry_key"
        with self._server.connection() as connection:
            return [StateEntry(key.decode(), value, int(version)) for key, value, version in query(connection, sql)]

    def commit(self, write: Mapping[str, bytes | None], expect: Mapping[str, int | None] | None = None) -> int | None:
        check_state_write(write)
        with self._server.connection() as connection:
            query(connection, "BEGIN")
            [(revision,)] = query(connection, f"SELECT revision + 1 FROM {self._meta}.state_revision FOR UPDATE")
            if expect and not self._holds(connection, expect):
                query(connection, "ROLLBACK")
                return None
            statements = [f"UPDATE {self._meta}.state_revision SET revision = {int(revision)}"]
            for key, value in write.items():
                if value is None:
                    statements.append(f"DELETE FROM {self._meta}.state_entry WHERE entry_key = {_literal(key)}")
                else:
                    statements.append(f"REPLACE INTO {self._meta}.state_entry VALUES ({_literal(key)}, X'{value.hex()}', {int(revision)})")
            try:
                commit_script(connection, statements)
            except (pymysql.err.MySQLError, OSError) as error:
                raise commit_failed(self._server, error) from error
        return int(revision)

    def now_us(self) -> int:
        with self._server.connection() as connection:
            [(now_us,)] = query(connection, "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS UNSIGNED)")
        return int(now_us)

    def _holds(self, connection: pymysql.connections.Connection[Any], expect: Mapping[str, int | None]) -> bool:
        keys = ",".join(map(_literal, expect))
        sql = f"SELECT entry_key, version FROM {self._meta}.state_entry WHERE entry_key IN ({keys})"
        versions = {key.decode(): int(version) for key, version in query(connection, sql)}
        return all(versions.get(key) == version for key, version in expect.items())


def _literal(text: str) -> str:
    return f"X'{text.encode().hex()}'"
