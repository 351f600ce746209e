"""Whether a server takes writes: the fence of a master, and its end."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, Final

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.errors import error_code
from cellfeed.store.engines.mysql.operation_locks import LOCKING
from cellfeed.store.engines.mysql.semi_sync import (
    SEMI_SYNC_SETTINGS,
    SEMI_SYNC_TIMEOUT_MS,
    has_settings,
)
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.failpoints import marked

_ATTEMPTS: Final = 20

_PAUSE_S: Final = 0.05
"""A commit that was cut off in its wait for a minion takes milliseconds to end."""


def is_read_only(server: MySqlServer) -> bool:
    [(read_only,)] = server.rows("SELECT @@GLOBAL.read_only")
    return bool(int(read_only))


@marked("role.open")
def open_for_writes(server: MySqlServer) -> None:
    """Takes writes from now on. A server that does so already is asked for nothing: the account of
    a single server may not be allowed to change its settings."""
    if is_read_only(server):
        server.rows("SET GLOBAL read_only = 0")


@marked("fence.server")
def make_read_only(server: MySqlServer) -> None:
    """No client's commit is acknowledged after this: every other client is cut off, and the server
    is read-only. Raises StorageUnavailable.

    Cut off first: a commit that waits for a minion (semi-synchronous, and none is left) holds the
    lock that read-only needs; killed, it ends without an answer to its client. And once more at the
    end: read-only does not bind privileged users, and one may have come in between.

    Before all that the master counts as unconfirmed: a commit that is killed in its wait is there,
    and no minion has it, so no guard holds and nobody is answered `exists`.
    """
    with server.connection() as connection:
        query(connection, "SET SESSION lock_wait_timeout = 0")
        if has_settings(connection, SEMI_SYNC_SETTINGS):
            query(connection, f"SET GLOBAL rpl_semi_sync_master_timeout = {SEMI_SYNC_TIMEOUT_MS}")
        for attempt in range(1, _ATTEMPTS + 1):
            _cut_off_clients(connection, server)
            try:
                query(connection, "SET GLOBAL read_only = 1")
                break
            except pymysql.err.MySQLError as error:
                if error_code(error) != ER.LOCK_WAIT_TIMEOUT or attempt == _ATTEMPTS:
                    raise
                time.sleep(_PAUSE_S)
        _cut_off_clients(connection, server)
        query(connection, "SET SESSION lock_wait_timeout = DEFAULT")


def _cut_off_clients(connection: Connection[Any], server: MySqlServer) -> None:
    for thread, command, user in query(
        connection,
        "SELECT ID, COMMAND, USER FROM information_schema.PROCESSLIST WHERE ID <> CONNECTION_ID()",
    ):
        if (
            command not in ("Binlog Dump", "Daemon")
            and user != "system user"
            and (server.address, int(thread)) not in LOCKING
        ):
            with suppress(pymysql.err.MySQLError):  # it may have ended by itself
                query(connection, f"KILL CONNECTION {int(thread)}")
