"""Connections to one MySQL or MariaDB server: a small pool of PyMySQL connections with the session
settings that the engine relies on.

Every session: UTC, READ COMMITTED, autocommit, strict SQL mode, no name resolution of values.
Column values come back undecoded where the engine says so (decoding costs twice the fetch itself).
Time-outs bound every read and write: no call hangs past ``TIMEOUT_S``.
"""

from __future__ import annotations

import math
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final
from urllib.parse import unquote, urlsplit

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CLIENT, COMMAND, ER

from cellfeed.store import forks
from cellfeed.store.engines.mysql.errors import StatementFailed, error_code, failed, is_lost
from cellfeed.store.errors import InvalidRequest, StorageUnavailable

TIMEOUT_S: Final = 15.0
"""Longest wait for one answer of the server: above InnoDB's lock wait (``LOCK_WAIT_S``), so that a
lock time-out is reported as one."""

CONNECT_TIMEOUT_S: Final = 3.0
GREETING_TIMEOUT_S: Final = 5.0
"""Longest wait for each answer while a connection is made. A server that is stopped, and whatever
else has its port, takes connections and says nothing: no statement of anybody's is under way there
that would be worth waiting for."""

LOCK_WAIT_S: Final = 10
_KEPT_MAX: Final = 16
"""Idle connections kept per server."""

_SESSION: Final = (
    # The isolation level has one name in MariaDB and another in MySQL, but one statement.
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; "
    "SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', "
    f"innodb_lock_wait_timeout = {LOCK_WAIT_S}, group_concat_max_len = 67108864"
)

PACKET_BYTES_MAX: Final = 16 << 20
"""Statements that are sent together, in bytes; half of what a server must take
(``mysql_checks.PACKET_BYTES_MIN``), for one statement may be as large."""


@dataclass(frozen=True, slots=True)
class MySqlAddress:
    """Where a server is. ``replication`` is ``(host, port)`` as the other servers of its cluster
    reach it. The password is never part of a text."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    replication: tuple[str, int]

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_mysql_url(url: str, replication: str | None = None) -> MySqlAddress:
    """``mysql://user:password@host:port``; ``replication`` is ``host:port`` where the servers reach
    each other otherwise. Raises InvalidRequest."""
    form = "a MySQL server is given as mysql://user:password@host:port"
    try:
        parts = urlsplit(url)
        port = parts.port or 3306
        reached = urlsplit(f"//{replication}") if replication else parts
        replication_port = reached.port or 3306
    except ValueError as error:
        # Without what was given: it may hold a password.
        raise InvalidRequest(f"{form}: {error}") from None
    if (
        parts.scheme != "mysql"
        or not parts.hostname
        or not reached.hostname
        or parts.path.strip("/")
        or parts.query
    ):
        raise InvalidRequest(form)
    return MySqlAddress(
        parts.hostname,
        port,
        unquote(parts.username or "root"),
        unquote(parts.password or ""),
        (reached.hostname, replication_port),
    )


class MySqlServer:
    """One server's connections. ``timeout_s``: longest wait for one answer, in seconds."""

    def __init__(self, address: MySqlAddress | str, timeout_s: float = TIMEOUT_S) -> None:
        self.address = parse_mysql_url(address) if isinstance(address, str) else address
        self.timeout_s = timeout_s
        self._idle: list[Connection[Any]] = []
        self._busy: set[Connection[Any]] = set()
        self._state = threading.Condition()
        self._in_use = 0
        self._closed = False
        self.opened_at_s = -math.inf
        """When the youngest connection was begun, by the monotonic clock: the server may have
        restarted before that."""
        self.on_open: Callable[[Connection[Any]], None] | None = None
        """Called with every connection that is made, before anybody uses it; its errors reach the
        connection's user."""
        self._generation = forks.generation
        """The connections are those of one process: after a ``fork()`` a child refuses to use them,
        and does not end the parent's sessions."""

    def __str__(self) -> str:
        return str(self.address)

    @contextmanager
    def connection(self) -> Iterator[Connection[Any]]:
        """A connection in autocommit mode. One that failed is thrown away. Raises
        StorageUnavailable (reads and failures before a commit)."""
        with self._using():
            connection = self._take()
            try:
                with self._busy_with(connection):
                    yield connection
            except BaseException as error:
                with suppress(Exception):
                    connection.close()
                if isinstance(error, (pymysql.err.MySQLError, OSError)):
                    if is_lost(error):
                        # Those kept from before the server went, or cut its clients off, are dead
                        # as well.
                        self.drop_idle()
                    raise failed(self, error) from error
                raise
            else:
                self._give_back(connection)

    def close(self) -> None:
        """Waits for calls under way, then closes all connections; later calls raise
        StorageUnavailable."""
        if self._generation != forks.generation:
            return
        with self._state:
            self._closed = True
            self._state.wait_for(lambda: self._in_use == 0)
            self.drop_idle()

    def abort(self) -> None:
        """Cuts the connections off that are in use: calls that wait for an answer fail at once, as
        when the network does. Later calls make new ones."""
        if self._generation != forks.generation:
            return
        with self._state:
            busy = list(self._busy)
        for connection in busy:
            with suppress(OSError, AttributeError):  # it may have ended by itself
                connection._sock.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined] # noqa: SLF001 - close() would wait for the reader
        self.drop_idle()

    @contextmanager
    def _busy_with(self, connection: Connection[Any]) -> Iterator[None]:
        with self._state:
            self._busy.add(connection)
        try:
            yield
        finally:
            with self._state:
                self._busy.discard(connection)

    def drop_idle(self) -> None:
        """Closes the connections that are kept; the next calls make new ones."""
        while self._generation == forks.generation:
            try:
                connection = self._idle.pop()
            except IndexError:
                return
            with suppress(Exception):
                connection.close()

    def _take(self) -> Connection[Any]:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self.open_connection()
            if not _hung_up(connection):
                return connection
            with suppress(Exception):
                connection.close()

    def _give_back(self, connection: Connection[Any]) -> None:
        if len(self._idle) < _KEPT_MAX:
            self._idle.append(connection)
        else:
            connection.close()

    def open_connection(self) -> Connection[Any]:
        """A connection of the caller's own, to be closed by it. Raises StorageUnavailable."""
        self.opened_at_s = time.monotonic()
        address = self.address
        try:
            connection = _Connection(
                host=address.host,
                port=address.port,
                user=address.user,
                password=address.password,
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=min(CONNECT_TIMEOUT_S, self.timeout_s),
                read_timeout=min(GREETING_TIMEOUT_S, self.timeout_s),
                write_timeout=self.timeout_s,
                client_flag=CLIENT.MULTI_STATEMENTS,
                init_command=_SESSION,
                conv={},
            )
            _leave_statements_out_of_binlog(connection)
        except Exception as error:
            # of PyMySQL any kind, where what answers is no server or is cut off in its greeting
            raise failed(self, error, "nothing written, no connection") from error
        connection._read_timeout = self.timeout_s  # type: ignore[attr-defined] # noqa: SLF001 - PyMySQL has one for the greeting and all that follows
        if self.on_open is not None:
            try:
                self.on_open(connection)
            except BaseException as error:
                with suppress(Exception):
                    connection.close()
                if isinstance(error, (pymysql.err.MySQLError, OSError)):
                    raise failed(self, error, "nothing written, no connection") from error
                raise
        return connection

    @contextmanager
    def _using(self) -> Iterator[None]:
        if self._generation != forks.generation:
            raise StorageUnavailable(
                f"{self} was connected to before this process was forked; open the datastore again"
                " in the child"
            )
        with self._state:
            if self._closed:
                raise StorageUnavailable(f"the connections to {self} are closed")
            self._in_use += 1
        try:
            yield
        finally:
            with self._state:
                self._in_use -= 1
                self._state.notify_all()


def _leave_statements_out_of_binlog(connection: Connection[Any]) -> None:
    """MariaDB writes the text of each statement into the binary log, beside the rows that it
    changed, for people to read. With bodies as X'..' literals the text is more than twice the rows
    themselves, and every commit writes it to the disk. Minions take the rows. An account that may
    not switch it off (BINLOG ADMIN) keeps the text."""
    if is_mariadb(connection):
        try:
            query(connection, "SET SESSION binlog_annotate_row_events = OFF")
        except pymysql.err.OperationalError as error:
            if error_code(error) != ER.SPECIFIC_ACCESS_DENIED_ERROR:
                raise


def is_mariadb(connection: Connection[Any]) -> bool:
    """Whether the server is MariaDB, and not MySQL."""
    return "MariaDB" in connection.get_server_info()  # type: ignore[no-untyped-call]


class _Connection(Connection):
    """One that takes TLS where the server has it, as PyMySQL does, with one context for all.
    PyMySQL makes a context for each connection, also where the server has no TLS. To read the
    system's certificates for it costs twenty milliseconds of processor time."""

    _tls: ClassVar[list[ssl.SSLContext]] = []

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        if not self._tls:  # two threads may both make one; either serves
            self._tls.append(super()._create_ssl_ctx(sslp))  # type: ignore[misc]
        return self._tls[0]


def query(connection: Connection[Any], sql: str | bytes) -> Sequence[tuple[Any, ...]]:
    """Runs one statement and returns its rows, values as the server sent them (bytes, or None)."""
    connection.query(sql)
    result = connection._result  # type: ignore[attr-defined] # noqa: SLF001 - PyMySQL's cursor adds several microseconds a row and nothing that is needed here
    return result.rows or () if result is not None else ()


def has_database(server: MySqlServer, name: str) -> bool:
    """Whether the server has a database of that name. Raises StorageUnavailable."""
    with server.connection() as connection:
        return bool(
            query(
                connection,
                f"SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = '{name}'",
            )
        )


def query_all(
    connection: Connection[Any], statements: Sequence[str]
) -> list[Sequence[tuple[Any, ...]]]:
    """As :func:`query` for several statements, in one round trip."""
    answers = [query(connection, ";".join(statements))]
    for _ in statements[1:]:
        connection.next_result()
        answers.append(connection._result.rows or ())  # type: ignore[attr-defined] # noqa: SLF001 - as above
    return answers


def run_script(
    connection: Connection[Any], statements: Sequence[str], *, after_commit: Sequence[str] = ()
) -> None:
    """Sends several statements in one packet and takes every answer. The server stops at the first
    that fails. The last of ``statements`` is a COMMIT where ``after_commit`` follows it.

    Raises StatementFailed when the server refused one before the last of ``statements``: that one
    was then never run. Of it, and of those behind it, the driver's error comes as it is.
    """
    answered = 0
    try:
        connection.query(";".join([*statements, *after_commit]))
        answered = 1
        # An answer per statement, whatever it says of affected rows.
        for _ in range(len(statements) + len(after_commit) - 1):
            connection.next_result()
            answered += 1
    except pymysql.err.MySQLError as error:
        # Codes from 2000 to 2999 are the client's own: the connection was lost, and nobody knows
        # which statements ran.
        if error_code(error) < 2000 and answered < len(statements) - 1:
            raise StatementFailed(*error.args) from error
        raise


def commit_script(
    connection: Connection[Any],
    statements: Sequence[str],
    after_commit: Sequence[str] = (),
    *,
    silent: bool = False,
) -> None:
    """The statements of a transaction, its COMMIT and what follows it, in one packet where that is
    not too large. ``silent``: none of the statements begins a transaction or answers with rows, so
    that they may have one answer (:func:`_block`).

    An error is to be judged by :func:`cellfeed.store.engines.mysql.errors.commit_failed`.
    """
    *packets, last = (
        _block(connection, packet) if silent else packet for packet in _packets(statements)
    )
    for packet in packets:
        try:
            run_script(connection, packet)
        except pymysql.err.MySQLError as error:
            raise StatementFailed(*error.args) from error
    run_script(connection, [*last, "COMMIT"], after_commit=after_commit)


def _block(connection: Connection[Any], statements: Sequence[str]) -> Sequence[str]:
    """Silent statements as one, where the server is MariaDB (MySQL has no such statement outside of
    a routine): it stops at the first that fails, as a script does, and gives its error.

    A group commit writes to some thirty shards, and an answer for each is a packet that the server
    sends and the driver takes apart: a quarter of the writer's processor time, and a dozen waits in
    which other threads take the interpreter. Of thousands of cells a block would cost the server a
    fifth more: those go through :class:`Pipeline`.
    """
    if len(statements) < 2 or not is_mariadb(connection):
        return statements
    return [f"BEGIN NOT ATOMIC {';'.join(statements)}; END"]


class Pipeline:
    """Statements that are sent without waiting for the answers to those before: the server runs
    some while the next ones are still being made.

    The server runs on past an error, so nothing that ends the transaction may be sent before
    :meth:`finish` has returned.
    """

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection
        self._sent: list[tuple[int, int]] = []
        """Of each packet how many answers it has, and the sequence number that they begin with."""

    def send(self, statements: Sequence[str]) -> None:
        """Sends them, in packets of a bounded size. Raises StatementFailed."""
        try:
            for packet in _packets(statements):
                self._connection._execute_command(COMMAND.COM_QUERY, ";".join(packet))  # type: ignore[attr-defined] # noqa: SLF001 - query() waits
                self._sent.append((len(packet), self._connection._next_seq_id))  # type: ignore[attr-defined] # noqa: SLF001
        except (pymysql.err.MySQLError, OSError) as error:
            raise StatementFailed(*error.args) from error

    def finish(self) -> None:
        """Takes every answer, and raises StatementFailed for the first that was an error."""
        failed: pymysql.err.MySQLError | None = None
        for answers, sequence_number in self._sent:
            self._connection._next_seq_id = sequence_number  # type: ignore[attr-defined] # noqa: SLF001 - of the packet sent last, until now
            try:
                self._connection._read_query_result()  # type: ignore[attr-defined] # noqa: SLF001
                for _ in range(answers - 1):
                    self._connection.next_result()
            except pymysql.err.MySQLError as error:
                failed = failed or error
                if 2000 <= error_code(error) < 3000:
                    break  # the connection is lost, and with it the transaction
        self._sent.clear()
        if failed is not None:
            raise StatementFailed(*failed.args) from failed


def _packets(statements: Sequence[str]) -> list[list[str]]:
    """The statements in as few packets as their size allows; at least one packet."""
    packets: list[list[str]] = [[]]
    packet_bytes = 0
    for statement in statements:
        if packet_bytes and packet_bytes + len(statement) > PACKET_BYTES_MAX:
            packets.append([])
            packet_bytes = 0
        packets[-1].append(statement)
        packet_bytes += len(statement)
    return packets


def _hung_up(connection: Connection[Any]) -> bool:
    """Whether the server has closed an idle connection (its ``wait_timeout``, a restart): there is
    something to read when nothing was asked."""
    sock = connection._sock  # type: ignore[attr-defined] # noqa: SLF001 - a ping would cost a round trip per call
    if sock is None:
        return True
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
