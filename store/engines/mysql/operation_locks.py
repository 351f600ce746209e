"""User locks of the operations on servers: one copy to a node, one promotion at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

import pymysql

from cellfeed.store.engines.mysql.address import MySqlAddress
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.errors import failed
from cellfeed.store.engines.mysql.locks import free_locks, take_lock
from cellfeed.store.errors import StorageUnavailable

LOCKING: Final[set[tuple[MySqlAddress, int]]] = set()
"""This process's connections that hold locks: a promotion that fences a server, or points it to
another master, keeps its own lock there."""


@contextmanager
def copy_lock(master: MySqlServer, node: str) -> Iterator[None]:
    """A user lock on the master: one copy to a node at a time. Raises StorageUnavailable when it is
    taken; ends with its connection."""
    with ExitStack() as locks:
        _lock(
            locks,
            master,
            f"cellfeed-copy-{node}",
            f"{node} is being made a copy of {master} already",
        )
        yield


@contextmanager
def promotion_lock(servers: Sequence[MySqlServer], name: str) -> Iterator[None]:
    """A user lock on every server given: with a majority of a cluster's nodes, only one promotion
    can hold it. Raises StorageUnavailable when it is taken.

    It ends with its connections, so a promotion that is killed leaves none behind.
    """
    with ExitStack() as locks:
        for server in servers:
            _lock(
                locks,
                server,
                f"cellfeed-promotion-{name}",
                f"a promotion of {name}, or the return of one of its nodes, is under way elsewhere"
                f" ({server} is locked)",
            )
        yield


def _lock(locks: ExitStack, server: MySqlServer, name: str, taken: str) -> None:
    connection = server.open_connection()
    locks.callback(free_locks, connection)
    kept = (server.address, int(connection.thread_id()))  # type: ignore[no-untyped-call]
    LOCKING.add(kept)
    locks.callback(LOCKING.discard, kept)
    try:
        got = take_lock(connection, name)
    except (pymysql.err.MySQLError, OSError) as error:
        raise failed(server, error) from error
    if not got:
        raise StorageUnavailable(taken)
