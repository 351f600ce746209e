"""Rewrites the places where a MariaDB server keeps bytes of erased or trimmed cells, while it is at
work. Nothing of it is part of the cluster's history.

Cells from before there were checksums get theirs here as well, on each node by itself. Only the
frame of such a body proves it, so its frame has to be whole.

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

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.checksum import cell_checksum
from cellfeed.store.engines.mysql.cells import CELL, stored_cell
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.errors import error_code, failed
from cellfeed.store.engines.mysql.locks import free_locks, take_lock
from cellfeed.store.engines.mysql.statements import query, query_all
from cellfeed.store.errors import DataDamaged, StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint

declare(
    "mysql.scrub.after_checksums",
    "mysql.scrub.after_table",
    "mysql.scrub.after_undo",
    "mysql.scrub.between_sizes",
)

ANSWER_TIMEOUT_S: Final = 86_400.0
"""Longest wait for one statement, in seconds: rewriting a large table takes hours."""

_TABLE_LOCK_S: Final = 5
_TABLE_LOCK_ATTEMPTS: Final = 24
"""A table's new file takes its place under a short lock, which puts wait for: it gives up in
seconds when a long transaction is in its way, and tries again."""

_SUMMED_ROWS: Final = 1_000
"""Cells that get their checksums in one transaction."""

_SCRATCH_ROWS: Final = 512
_SCRATCH_BYTES: Final = 7_000
"""Two rows a page: 256 pages, twice as many as the doublewrite buffer holds."""

_SEGMENTS: Final = 128
_UNDO_ROUNDS: Final = 8
"""Transactions take the rollback segments by turns; each fills one log that was kept of a segment,
so this is how many a segment may have kept."""

_FLUSHES: Final = 3
_PURGE_S: Final = 120.0
_POLL_S: Final = 0.1
_REDO_STEP_BYTES: Final = 4_096
_PURGED: Final = re.compile(r"Trx id counter (\d+)\s+Purge done for trx's n:o < (\d+)")


class ServerScrub:
    """One server; ``scratch``: the name of a database that nobody else has. Made by
    :func:`scrubbing`."""

    def __init__(self, server: MySqlServer, connection: Connection[Any], scratch: str) -> None:
        self._server = server
        self._connection = connection
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
            for database, table in self._rows(sql)
            if database.startswith(prefix) and database.removeprefix(prefix).isdigit()
        ]

    def rebuild(self, database: str, table: str) -> None:
        """Rewrites a table, online. Raises StorageUnavailable when a transaction is in its way for
        longer than two minutes."""
        for attempt in range(1, _TABLE_LOCK_ATTEMPTS + 1):
            try:
                self._rows(f"ALTER TABLE {database}.{table} FORCE, ALGORITHM=INPLACE, LOCK=NONE")
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
        """Gives a checksum to every cell that has none and whose body decodes: how many got one,
        and the ids of the damaged ones. A cell that is erased meanwhile gets one from the erasure,
        and keeps it."""
        after, added, damaged = -1, 0, list[int]()
        name = f"{database}.{table}"
        while True:
            try:
                found = self._rows(
                    f"SELECT {CELL} FROM {name} WHERE added_id > {after} AND crc IS NULL ORDER BY"
                    f" added_id LIMIT {_SUMMED_ROWS}"
                )
            except StorageUnavailable as error:
                cause = error.__cause__
                if cause is not None and error_code(cause) in (ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR):
                    return added, damaged
                raise
            if not found:
                return added, damaged
            after, sums = int(found[-1][0]), []
            for row in found:
                try:
                    cell = stored_cell(0, row)
                    decode_body(cell.body)  # the only checksum that it has
                    sums.append((cell.added_id, cell_checksum(*cell)))
                except DataDamaged:
                    damaged.append(int(row[0]))
            if sums:
                cases, ids = (
                    " ".join(f"WHEN {added_id} THEN {crc}" for added_id, crc in sums),
                    ",".join(str(added_id) for added_id, _ in sums),
                )
                self._rows(
                    f"UPDATE {name} SET crc = CASE added_id {cases} END WHERE added_id IN ({ids})"
                    " AND crc IS NULL"
                )
                added += len(sums)
            failpoint("mysql.scrub.after_checksums")

    def rewrite_undo(self) -> str | None:
        """Undo logs and the doublewrite buffer; why undo logs may still have bytes, or None."""
        with self._scratch_table() as table:
            for number in range(0, _UNDO_ROUNDS * _SEGMENTS, _SEGMENTS // 2):
                letters = "ab" if number // (_SEGMENTS // 2) % 2 else "ba"
                # A value that is there already would not be written.
                updates = [
                    f"UPDATE {table} SET filler = REPEAT('{letters[n % 2]}', {_SCRATCH_BYTES} +"
                    f" {n % 7}) WHERE id <= 2"
                    for n in range(_SEGMENTS // 2)
                ]
                self._all(updates)
            why_not = self._wait_for_purge()
            failpoint("mysql.scrub.after_undo")
            for n in range(_FLUSHES):
                self._rows(f"UPDATE {table} SET filler = REPEAT('{'cd'[n % 2]}', {_SCRATCH_BYTES})")
                self._rows(f"FLUSH LOCAL TABLES {table} FOR EXPORT")
                self._rows("UNLOCK TABLES")
        return why_not

    def rewrite_redo(self) -> str | None:
        """The redo log; why it may still have bytes, or None. Everything that was changed before is
        in its table's file afterwards."""
        [(size,)] = self._rows("SELECT @@GLOBAL.innodb_log_file_size")
        try:
            for wanted in (int(size) + _REDO_STEP_BYTES, int(size)):
                self._rows(f"SET GLOBAL innodb_log_file_size = {wanted}")
                self._wait(
                    lambda wanted=wanted: (  # type: ignore[misc]
                        self._rows("SELECT @@GLOBAL.innodb_log_file_size") == ((str(wanted),),)
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
        self._rows("FLUSH LOCAL BINARY LOGS")
        files = self.binary_logs()
        return files[-1] if files else None

    def binary_logs(self) -> list[str]:
        """The files, the oldest first."""
        return (
            [str(row[0]) for row in self._rows("SHOW BINARY LOGS")]
            if self._rows("SELECT @@GLOBAL.log_bin") == (("1",),)
            else []
        )

    def remove_binary_logs(self, before: str) -> str | None:
        """Deletes the files before this one; why some are left, or None. A file is kept by the
        server while a connection that reads it has not come further."""

        def purged() -> bool:
            self._rows(f"PURGE BINARY LOGS TO '{before}'")
            return self.binary_logs()[0] >= before

        try:
            self._wait(purged, f"readers of the binary log to come to {before}")
        except StorageUnavailable as error:
            return f"binary log: {error}; see SHOW PROCESSLIST for its readers, and scrub again"
        return None

    def begin_relay_log(self) -> None:
        """Begins a new relay log; the server deletes the older ones as it applies them."""
        self._rows("FLUSH LOCAL RELAY LOGS")

    def other_logs(self) -> list[str]:
        """Logs in which the server keeps the text of statements, bodies in hexadecimal
        digits."""
        [(general, slow)] = self._rows("SELECT @@GLOBAL.general_log, @@GLOBAL.slow_query_log")
        names = [
            name for name, on in (("general_log", general), ("slow_query_log", slow)) if int(on)
        ]
        return [
            f"{name} is on: its file has the text of statements; remove it, and turn it off"
            for name in names
        ]

    # --- parts ------------------------------------------------------------------------------------

    @contextmanager
    def _scratch_table(self) -> Iterator[str]:
        table = f"{self._scratch}.page"
        self._rows(f"DROP DATABASE IF EXISTS {self._scratch}")
        self._rows(f"CREATE DATABASE {self._scratch}")
        self._rows(
            f"CREATE TABLE {table} (id INT NOT NULL PRIMARY KEY, filler VARBINARY(8000) NOT NULL)"
            " ENGINE=InnoDB ROW_FORMAT=DYNAMIC"
        )
        for first in range(1, _SCRATCH_ROWS + 1, _SEGMENTS):
            values = ",".join(
                f"({number}, REPEAT('z', {_SCRATCH_BYTES}))"
                for number in range(first, first + _SEGMENTS)
            )
            self._rows(f"INSERT INTO {table} VALUES {values}")
        yield table
        self._rows(f"DROP DATABASE {self._scratch}")

    def _wait_for_purge(self) -> str | None:
        """Until no transaction from before now has an undo log."""
        until, _ = self._purged()
        try:
            self._wait(
                lambda: self._purged()[1] >= until, "old versions of rows to be purged", _PURGE_S
            )
        except StorageUnavailable as error:
            return (
                f"undo logs: {error}; a transaction that was begun long ago keeps them (a backup, a"
                " copy to a node): scrub again when it is over"
            )
        return None

    def _purged(self) -> tuple[int, int]:
        """The number of the next transaction, and below which one all are purged."""
        [(_, _, text)] = self._rows("SHOW ENGINE INNODB STATUS")
        found = _PURGED.search(str(text))
        if found is None:
            raise StorageUnavailable(
                f"{self._server}: SHOW ENGINE INNODB STATUS does not show how far the purge is"
            )
        return int(found[1]), int(found[2])

    def _wait(self, done: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
        end_s = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > end_s:
                raise StorageUnavailable(f"waited {timeout_s:.0f} s for {what}")
            time.sleep(_POLL_S)

    def _rows(self, sql: str) -> Sequence[tuple[Any, ...]]:
        try:
            return tuple(query(self._connection, sql))
        except (pymysql.err.MySQLError, OSError) as error:
            raise failed(self._server, error, "not scrubbed") from error

    def _all(self, statements: Sequence[str]) -> None:
        try:
            query_all(self._connection, statements)
        except (pymysql.err.MySQLError, OSError) as error:
            raise failed(self._server, error, "not scrubbed") from error


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
            yield ServerScrub(server, connection, scratch)
        finally:
            with suppress(pymysql.err.MySQLError, OSError):
                # a connection that was lost: the server has it until it starts again, and does no
                # harm with it
                query(
                    connection,
                    f"SET GLOBAL innodb_immediate_scrub_data_uncompressed = {int(before)}",
                )
