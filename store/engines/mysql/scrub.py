"""Rewrites the places where a MariaDB server keeps bytes of erased or trimmed cells, while it is at
work. Nothing of it is part of the cluster's history.

Where a body's bytes are after its row was overwritten, and how the scrub takes them away:

    tables          room that rows have left in pages, and freed pages: ALTER TABLE … FORCE
                    rewrites the table, online, and deletes the old file
    undo logs       the old value of each row. Pages that purge frees are overwritten
                    (innodb_immediate_scrub_data_uncompressed), but a small log is kept
                    for the next transaction of its rollback segment. So transactions that fill such
                    a page go round all segments, several times, and are waited for until they are
                    purged
    doublewrite     copies of pages from before they were written. More pages than it holds are
                    written, several times
    redo log        every change. Giving it another size online (MariaDB 10.9) rewrites it,
                    behind a checkpoint; then it gets its own size back
    binary log      every row that was put. A new file is begun, the older ones are deleted
                    (:mod:`cellfeed.store.clusters.operating.scrub` says when)
    relay logs      all that a minion has received. A new file is begun, and the server deletes
                    those that it has applied

The scratch table lies in a database of its own and is dropped at the end. Crash points: the next
scrub drops the scratch database of a killed one, and does all of it again. The redo log may keep a
size that is 4 KiB larger, and the server may overwrite freed pages, until it starts again. Two
scrubs do not meet: a user lock, which ends with its connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

import pymysql
from pymysql.constants import ER

from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.errors import error_code, failed
from cellfeed.store.engines.mysql.locks import free_locks, take_lock
from cellfeed.store.engines.mysql.missing_checksums import add_checksums
from cellfeed.store.engines.mysql.scrub_session import ScrubSession
from cellfeed.store.engines.mysql.scrub_undo import rewrite_undo
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint

declare(
    "mysql.scrub.after_table",
    "mysql.scrub.between_sizes",
)

ANSWER_TIMEOUT_S: Final = 86_400.0
"""Longest wait for one statement, in seconds: rewriting a large table takes hours."""

_TABLE_LOCK_S: Final = 5
_TABLE_LOCK_ATTEMPTS: Final = 24
"""A table's new file takes its place under a short lock, which puts wait for: it gives up in
seconds when a long transaction is in its way, and tries again."""

_REDO_STEP_BYTES: Final = 4_096


class ServerScrub:
    """One server; ``scratch``: the name of a database that nobody else has. Made by
    :func:`scrubbing`."""

    def __init__(self, session: ScrubSession, scratch: str) -> None:
        self._session = session
        self._scratch = scratch

    def tables(self, prefix: str) -> list[tuple[str, str]]:
        """``(database, table)`` of every table in a database whose name is ``prefix`` and
        digits."""
        sql = (
            "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE ENGINE = 'InnoDB'"
            " ORDER BY 1, 2"
        )
        return [
            (database, table)
            for database, table in self._session.rows(sql)
            if database.startswith(prefix) and database.removeprefix(prefix).isdigit()
        ]

    def rebuild(self, database: str, table: str) -> None:
        """Rewrites a table, online. Raises StorageUnavailable when a transaction is in its way for
        longer than two minutes."""
        for attempt in range(1, _TABLE_LOCK_ATTEMPTS + 1):
            try:
                self._session.rows(
                    f"ALTER TABLE {database}.{table} FORCE, ALGORITHM=INPLACE, LOCK=NONE"
                )
                break
            except StorageUnavailable as error:
                cause = error.__cause__
                if cause is not None and error_code(cause) in (ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR):
                    return  # it was dropped meanwhile, with its file
                if (
                    cause is None
                    or error_code(cause) != ER.LOCK_WAIT_TIMEOUT
                    or attempt == _TABLE_LOCK_ATTEMPTS
                ):
                    raise
        failpoint("mysql.scrub.after_table")

    def add_checksums(self, database: str, table: str) -> tuple[int, list[int]]:
        """As :func:`cellfeed.store.engines.mysql.missing_checksums.add_checksums`."""
        return add_checksums(self._session, database, table)

    def rewrite_undo(self) -> str | None:
        """Undo logs and the doublewrite buffer; why undo logs may still have bytes, or None."""
        return rewrite_undo(self._session, self._scratch)

    def rewrite_redo(self) -> str | None:
        """The redo log; why it may still have bytes, or None. Everything that was changed before is
        in its table's file afterwards."""
        [(size,)] = self._session.rows("SELECT @@GLOBAL.innodb_log_file_size")
        try:
            for wanted in (int(size) + _REDO_STEP_BYTES, int(size)):
                self._session.rows(f"SET GLOBAL innodb_log_file_size = {wanted}")
                self._session.wait(
                    lambda wanted=wanted: (  # type: ignore[misc]
                        self._session.rows("SELECT @@GLOBAL.innodb_log_file_size")
                        == ((str(wanted),),)
                    ),
                    "the redo log to be written again",
                )
                failpoint("mysql.scrub.between_sizes")
        except StorageUnavailable as error:
            return (
                f"redo log: {error}; it has them until {size} bytes more were written, or the"
                " server is started again with another innodb_log_file_size"
            )
        return None

    def begin_binary_log(self) -> str | None:
        """Begins a new file; its name, before which nothing is needed once everybody has read so
        far. None without a binary log."""
        self._session.rows("FLUSH LOCAL BINARY LOGS")
        files = self.binary_logs()
        return files[-1] if files else None

    def binary_logs(self) -> list[str]:
        """The files, the oldest first."""
        return (
            [str(row[0]) for row in self._session.rows("SHOW BINARY LOGS")]
            if self._session.rows("SELECT @@GLOBAL.log_bin") == (("1",),)
            else []
        )

    def remove_binary_logs(self, before: str) -> str | None:
        """Deletes the files before this one; why some are left, or None. A file is kept by the
        server while a connection that reads it has not come further."""

        def purged() -> bool:
            self._session.rows(f"PURGE BINARY LOGS TO '{before}'")
            return self.binary_logs()[0] >= before

        try:
            self._session.wait(purged, f"readers of the binary log to come to {before}")
        except StorageUnavailable as error:
            return f"binary log: {error}; see SHOW PROCESSLIST for its readers, and scrub again"
        return None

    def begin_relay_log(self) -> None:
        """Begins a new relay log; the server deletes the older ones as it applies them."""
        self._session.rows("FLUSH LOCAL RELAY LOGS")

    def other_logs(self) -> list[str]:
        """Logs in which the server keeps the text of statements, bodies in hexadecimal
        digits."""
        [(general, slow)] = self._session.rows(
            "SELECT @@GLOBAL.general_log, @@GLOBAL.slow_query_log"
        )
        names = [
            name for name, on in (("general_log", general), ("slow_query_log", slow)) if int(on)
        ]
        return [
            f"{name} is on: its file has the text of statements; remove it, and turn it off"
            for name in names
        ]


@contextmanager
def scrubbing(server: MySqlServer, scratch: str) -> Iterator[ServerScrub]:
    """A scrub of a server, on a connection of its own. Raises StorageUnavailable while another is
    under way there."""
    with ExitStack() as locks:
        connection = MySqlServer(server.address, ANSWER_TIMEOUT_S).open_connection()
        locks.callback(free_locks, connection)
        try:
            if not take_lock(connection, f"cellfeed-{scratch}"):
                raise StorageUnavailable(
                    f"{server} is being scrubbed by somebody else: wait until that is done"
                )
            [(before,)] = query(
                connection, "SELECT @@GLOBAL.innodb_immediate_scrub_data_uncompressed"
            )
            query(connection, f"SET SESSION sql_log_bin = 0, lock_wait_timeout = {_TABLE_LOCK_S}")
            query(connection, "SET GLOBAL innodb_immediate_scrub_data_uncompressed = ON")
        except (pymysql.err.MySQLError, OSError) as error:
            raise failed(server, error, "not scrubbed") from error
        try:
            yield ServerScrub(ScrubSession(server, connection), scratch)
        finally:
            with suppress(pymysql.err.MySQLError, OSError):
                # a connection that was lost: the server has it until it starts again, and does no
                # harm with it
                query(
                    connection,
                    f"SET GLOBAL innodb_immediate_scrub_data_uncompressed = {int(before)}",
                )
