"""One connection to a MySQL or MariaDB server, with the session settings that the engine relies on.

Every session: UTC, READ COMMITTED, autocommit, strict SQL mode, no name resolution of values.
Column values come back undecoded where the engine says so (decoding costs twice the fetch itself).
Time-outs bound every read and write: no call hangs past ``TIMEOUT_S``.
"""

from __future__ import annotations

import io
import select
import socket
import ssl
import struct
from typing import Any, ClassVar, Final

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from cellfeed.store.engines.mysql.errors import error_code
from cellfeed.store.engines.mysql.statements import is_mariadb, query

TIMEOUT_S: Final = 15.0
"""Longest wait for one answer of the server: above InnoDB's lock wait (``LOCK_WAIT_S``), so that a
lock time-out is reported as one."""

CONNECT_TIMEOUT_S: Final = 3.0

GREETING_TIMEOUT_S: Final = 5.0
"""Longest wait for each answer while a connection is made. A stopped server takes connections and
says nothing, and so may any other process at its port: no statement of anybody's is under way there
that would be worth waiting for."""

LOCK_WAIT_S: Final = 10

_READ_BYTES: Final = 1 << 16

SESSION: Final = (
    # The isolation level has one name in MariaDB and another in MySQL, but one statement.
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; "
    "SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', "
    f"innodb_lock_wait_timeout = {LOCK_WAIT_S}, group_concat_max_len = 67108864"
)


def leave_statements_out_of_binlog(connection: Connection[Any]) -> None:
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


class ServerConnection(Connection):
    """One that takes TLS where the server has it, as PyMySQL does, with one context for all that
    are given none of their own.
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
        if isinstance(sslp, ssl.SSLContext):
            return sslp
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


def has_hung_up(connection: Connection[Any]) -> bool:
    """Whether the server has closed an idle connection (its ``wait_timeout``, a restart): there is
    something to read when nothing was asked."""
    sock = connection._sock  # type: ignore[attr-defined] # noqa: SLF001 - a ping would cost a round trip per call
    if sock is None:
        return True
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
