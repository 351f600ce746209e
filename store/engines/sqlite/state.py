"""The state table in a SQLite file of its own, so that saved offsets and leases never wait for a
large put (E11)."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path

from cellfeed.store.engines.contract.state_limits import check_state_write
from cellfeed.store.engines.contract.values import StateEntry
from cellfeed.store.engines.sqlite.files import SqliteFile
from cellfeed.store.failpoints import declare, failpoint, marked

declare("sqlite.state.before_commit", "sqlite.state.after_commit")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entry (
    key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS revision (
    one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL
) STRICT;
INSERT OR IGNORE INTO revision VALUES (1, 0);
"""


class SqliteState:
    """:class:`cellfeed.store.engines.contract.state_table.StateTable`. Keys are compared as UTF-8
    bytes."""

    def __init__(self, place: Path | SqliteFile) -> None:
        self._file = place if isinstance(place, SqliteFile) else SqliteFile(place)
        with self._file.write() as connection:
            for statement in filter(str.strip, _SCHEMA.split(";")):
                connection.execute(statement)

    def get(self, key: str) -> StateEntry | None:
        with self._file.read() as connection:
            row = connection.execute(
                "SELECT value, version FROM entry WHERE key = ?", (key.encode(),)
            ).fetchone()
        return StateEntry(key, *row) if row else None

    def list(self, prefix: str) -> list[StateEntry]:
        low = prefix.encode()
        with self._file.read() as connection:
            sql = "SELECT key, value, version FROM entry WHERE key >= ? AND key < ? ORDER BY key"
            rows = connection.execute(sql, (low, low + b"\xff")).fetchall()
        return [StateEntry(key.decode(), value, version) for key, value, version in rows]

    @marked("cas.state")
    def commit(
        self, write: Mapping[str, bytes | None], expect: Mapping[str, int | None] | None = None
    ) -> int | None:
        check_state_write(write)
        with self._file.write() as connection:
            for key, version in (expect or {}).items():
                if _version(connection, key) != version:
                    return None
            [(revision,)] = connection.execute(
                "UPDATE revision SET revision = revision + 1 RETURNING revision"
            ).fetchall()
            for key, value in write.items():
                if value is None:
                    connection.execute("DELETE FROM entry WHERE key = ?", (key.encode(),))
                else:
                    connection.execute(
                        "INSERT OR REPLACE INTO entry VALUES (?, ?, ?)",
                        (key.encode(), value, revision),
                    )
            failpoint("sqlite.state.before_commit")
        failpoint("sqlite.state.after_commit")
        return int(revision)

    def begin_at(self, revision: int) -> None:
        """The next write has a higher revision than this one: a restored table does not use a
        version a second time."""
        with self._file.write() as connection:
            connection.execute("UPDATE revision SET revision = max(revision, ?)", (revision,))

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def close(self) -> None:
        self._file.close()


def _version(connection: sqlite3.Connection, key: str) -> int | None:
    row = connection.execute("SELECT version FROM entry WHERE key = ?", (key.encode(),)).fetchone()
    return row[0] if row else None
