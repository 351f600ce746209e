"""User locks of a server (``GET_LOCK``): one process at a time promotes, copies, moves or scrubs. A
lock ends with its connection.

It does not end at the same moment: a server frees the lock when its thread notices that the client
is gone. That is after ``close`` has returned, or after a killed process was reaped. So a process
that asks for a lock waits a little before the lock counts as somebody else's. Otherwise a tool that
runs again right after it failed would find itself in its own way. For the same reason a statement
frees a lock that is not needed any more: its answer says that it is free.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from pymysql.connections import Connection

from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.failpoints import marked

LOCK_FREED_S: Final = 2
"""Longest wait for a server to notice that a lock's connection has ended. Shorter than the answer
time-out of everybody who asks for one."""

LOCK_IDLE_MAX_S: Final = 7 * 86_400
"""A connection that holds a lock says nothing else for as long as a copy lasts; the server's own
limit for that is eight hours."""


@marked("claim.lock")
def take_lock(connection: Connection[Any], name: str) -> bool:
    """Whether the connection has the lock now; it keeps it until it is closed. Raises the driver's
    errors."""
    query(connection, f"SET SESSION wait_timeout = {LOCK_IDLE_MAX_S}")
    [(got,)] = query(connection, f"SELECT GET_LOCK({connection.escape(name)}, {LOCK_FREED_S})")
    return got is not None and int(got) == 1


def free_locks(connection: Connection[Any]) -> None:
    """Rolls back the connection's open transaction, frees its locks and closes it. Never raises:
    where the server does not answer it closes the connection, and the server frees the locks when
    it notices."""
    with suppress(Exception):
        query(connection, "ROLLBACK")
        query(connection, "SELECT RELEASE_ALL_LOCKS()")
    with suppress(Exception):
        connection.close()
