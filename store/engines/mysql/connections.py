"""A small pool of connections to one MySQL or MariaDB server."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CLIENT

from cellfeed.store import forks
from cellfeed.store.engines.in_use import InUse
from cellfeed.store.engines.mysql.address import MySqlAddress, parse_mysql_url
from cellfeed.store.engines.mysql.connection import (
    CONNECT_TIMEOUT_S,
    GREETING_TIMEOUT_S,
    SESSION,
    TIMEOUT_S,
    ServerConnection,
    has_hung_up,
    leave_statements_out_of_binlog,
)
from cellfeed.store.engines.mysql.errors import failed, is_lost
from cellfeed.store.engines.mysql.managed import is_demoted, refuse_demoted, says_read_only
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.engines.mysql.tls import tls_context
from cellfeed.store.errors import StorageUnavailable

_KEPT_MAX: Final = 16
"""Idle connections kept per server."""


class MySqlServer:
    """One server's connections. ``timeout_s``: longest wait for one answer, in seconds."""

    def __init__(self, address: MySqlAddress | str, timeout_s: float = TIMEOUT_S) -> None:
        self.address = parse_mysql_url(address) if isinstance(address, str) else address
        self.timeout_s = timeout_s
        self._idle: list[ServerConnection] = []
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
                if self.address.managed and says_read_only(error.__cause__ or error):
                    self.drop_idle()
                if isinstance(error, (pymysql.err.MySQLError, OSError)):
                    if is_lost(error):
                        # Those kept from before the server went, or cut its clients off, are dead
                        # as well.
                        self.drop_idle()
                    raise failed(self, error) from error
                raise
            else:
                self._give_back(connection)

    def rows(self, sql: str) -> Any:
        """The rows of one statement, in autocommit mode. Raises StorageUnavailable."""
        with self.connection() as connection:
            return query(connection, sql)

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

    def _take(self) -> ServerConnection:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self.open_connection()
            if not has_hung_up(connection) and (
                not self.address.managed or self._is_of_the_master(connection)
            ):
                return connection
            with suppress(Exception):
                connection.close()

    def _is_of_the_master(self, connection: ServerConnection) -> bool:
        """Whether a kept connection to a managed endpoint is worth using. Where its server was
        demoted, or is gone, the others that are kept are closed. Raises StorageUnavailable."""
        try:
            demoted = is_demoted(connection)
        except (pymysql.err.MySQLError, OSError) as error:
            if not is_lost(error):
                with suppress(Exception):
                    connection.close()
                raise failed(self, error) from error
            demoted = True
        if demoted:
            self.drop_idle()
        return not demoted

    def _give_back(self, connection: ServerConnection) -> None:
        if len(self._idle) < _KEPT_MAX:
            self._idle.append(connection)
        else:
            connection.close()

    def open_connection(self) -> ServerConnection:
        """A connection of the caller's own, to be closed by it. Raises StorageUnavailable."""
        self.opened_at_s = time.monotonic()
        address = self.address
        try:
            connection = ServerConnection(
                ssl=None if address.tls is None else tls_context(address.tls),
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
                init_command=SESSION,
                conv={},
            )
            leave_statements_out_of_binlog(connection)
        except Exception as error:
            # PyMySQL raises any kind, where something else than a server answers or the greeting is
            # cut off
            raise failed(self, error, "nothing written, no connection") from error
        connection.wait_at_most(self.timeout_s)
        if self.address.managed or self.on_open is not None:
            try:
                if self.address.managed:
                    refuse_demoted(self, connection)
                if self.on_open is not None:
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


def has_database(server: MySqlServer, name: str) -> bool:
    """Whether the server has a database of that name. Raises StorageUnavailable."""
    sql = f"SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = '{name}'"
    return bool(server.rows(sql))
