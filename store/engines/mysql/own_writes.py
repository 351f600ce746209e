"""Writes that are one node's own, and so stay out of its binary log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pymysql.connections import Connection

from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.statements import query


def leave_binlog(server: MySqlServer, connection: Connection[Any]) -> None:
    """From now on the connection's statements reach no minion. The copies behind a managed endpoint
    are its service's: there they go through the log, which no account of a customer may switch
    off."""
    if not server.address.managed:
        query(connection, "SET SESSION sql_log_bin = 0")


@contextmanager
def out_of_binlog(server: MySqlServer, connection: Connection[Any]) -> Iterator[None]:
    """:func:`leave_binlog` for the statements in the block. An error leaves the connection as it
    is: its pool throws it away."""
    leave_binlog(server, connection)
    yield
    if not server.address.managed:
        query(connection, "SET SESSION sql_log_bin = 1")
