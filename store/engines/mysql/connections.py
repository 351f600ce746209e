"""Connections to one MySQL or MariaDB server: a small pool of PyMySQL connections with the session
settings that the engine relies on.

Every session: UTC, READ COMMITTED, autocommit, strict SQL mode, no name resolution of values.
Column values come back undecoded where the engine says so (decoding costs twice the fetch itself).
Time-outs bound every read and write: no call hangs past ``TIMEOUT_S``.
"""

from __future__ import annotations

import io
import math
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, ClassVar, Final

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CLIENT, ER

from cellfeed.store import forks
from cellfeed.store.engines.in_use import InUse
from cellfeed.store.engines.mysql.address import MySqlAddress, parse_mysql_url
from cellfeed.store.engines.mysql.errors import error_code, failed, is_lost
from cellfeed.store.engines.mysql.statements import is_mariadb, query
from cellfeed.store.errors import StorageUnavailable

TIMEOUT_S: Final = 15.0
"""Longest wait for one answer of the server: above InnoDB's lock wait (``LOCK_WAIT_S``), so that a
lock time-out is reported as one."""

CONNECT_TIMEOUT_S: Final = 3.0
GREETING_TIMEOUT_S: Final = 5.0
"""Longest wait for each answer while a connection is made. A stopped server takes connections and
says nothing, and so may any other process at its port: no statement of anybody's is under way there
that would be worth waiting for."""

LOCK_WAIT_S: Final = 10
_KEPT_MAX: Final = 16
"""Idle connections kept per server."""

_READ_BYTES: Final = 1 << 16

_SESSION: Final = (
    # The isolation level has one name in MariaDB and another in MySQL, but one statement.
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; "
    "SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', "
    f"innodb_lock_wait_timeout = {LOCK_WAIT_S}, group_concat_max_len = 67108864"
)


class MySqlServer:
    """One server's connections. ``timeout_s``: longest wait for one answer, in seconds."""

    def __init__(self, address: MySqlAddress | str, timeout_s: float = TIMEOUT_S) -> None:
        self.address = parse_mysql_url(address) if isinstance(address, str) else address
        self.timeout_s = timeout_s
        self._idle: list[_Connection] = []
        self._busy: set[Connection[Any]] = set()
        self._in_use = InUse()
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
            self._busy.add(connection)  # one step of the interpreter, as the discard below
            try:
                try:
                    yield connection
                finally:
                    self._busy.discard(connection)
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
        with self._in_use.closing():
            self.drop_idle()

    def abort(self) -> None:
        """Cuts the connections off that are in use: calls that wait for an answer fail at once, as
        when the network does. Later calls make new ones."""
        if self._generation != forks.generation:
            return
        for connection in self._busy.copy():
            with suppress(OSError, AttributeError):  # it may have ended by itself
                connection._sock.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined] # noqa: SLF001 - close() would wait for the reader
        self.drop_idle()

    def drop_idle(self) -> None:
        """Closes the connections that are kept; the next calls make new ones."""
        while self._generation == forks.generation:
            try:
                connection = self._idle.pop()
            except IndexError:
                return
            with suppress(Exception):
                connection.close()

    def _take(self) -> _Connection:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self.open_connection()
            if not _hung_up(connection):
                return connection
            with suppress(Exception):
                connection.close()

    def _give_back(self, connection: _Connection) -> None:
        if len(self._idle) < _KEPT_MAX:
            self._idle.append(connection)
        else:
            connection.close()

    def open_connection(self) -> _Connection:
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
            # PyMySQL raises any kind, where something else than a server answers or the greeting is
            # cut off
            raise failed(self, error, "nothing written, no connection") from error
        connection.wait_at_most(self.timeout_s)
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

    def _using(self) -> AbstractContextManager[None]:
        if self._generation != forks.generation:
            raise StorageUnavailable(
                f"{self} was connected to before this process was forked; open the datastore again"
                " in the child"
            )
        return self._in_use.call(f"the connections to {self} are closed")


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


class _Connection(Connection):
    """One that takes TLS where the server has it, as PyMySQL does, with one context for all.
    PyMySQL makes a context for each connection, also where the server has no TLS. To read the
    system's certificates for it costs twenty milliseconds of processor time."""

    _tls: ClassVar[list[ssl.SSLContext]] = []
    _sock: Any
    _rfile: Any
    _read_timeout: float
    _write_timeout: float
    _current_timeout: float

    def wait_at_most(self, timeout_s: float) -> None:
        """For every answer from now on; PyMySQL has one time-out for the greeting and all that
        follows.

        The kernel keeps the time, where there is no TLS. Python would poll before each call, and
        give up the interpreter's lock once more. Between threads that costs more than the call.
        """
        self._read_timeout = self._write_timeout = timeout_s
        sock = self._sock
        if type(sock) is not socket.socket:
            return
        wait = struct.pack("@ll", int(timeout_s), int(timeout_s % 1 * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
        sock.settimeout(None)
        self._current_timeout = timeout_s  # so PyMySQL sets none of its own
        self._rfile.close()
        self._rfile = io.BufferedReader(_Answers(sock), _READ_BYTES)

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        if not self._tls:  # two threads may both make one; either serves
            self._tls.append(super()._create_ssl_ctx(sslp))  # type: ignore[misc]
        return self._tls[0]


class _Answers(io.RawIOBase):
    """The bytes that a server sends. Python's own reader takes a time-out of the kernel for the end
    of the bytes that are there now."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return self._sock.recv_into(buffer)
        except BlockingIOError:
            raise TimeoutError("timed out") from None


def has_database(server: MySqlServer, name: str) -> bool:
    """Whether the server has a database of that name. Raises StorageUnavailable."""
    with server.connection() as connection:
        return bool(
            query(
                connection,
                f"SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = '{name}'",
            )
        )


def _hung_up(connection: Connection[Any]) -> bool:
    """Whether the server has closed an idle connection (its ``wait_timeout``, a restart): there is
    something to read when nothing was asked."""
    sock = connection._sock  # type: ignore[attr-defined] # noqa: SLF001 - a ping would cost a round trip per call
    if sock is None:
        return True
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
