"""The connection of a scrub: its statements, and its waits for the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import pymysql
from pymysql.connections import Connection

from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.errors import failed
from cellfeed.store.engines.mysql.statements import query, query_all
from cellfeed.store.errors import StorageUnavailable

_POLL_S: Final = 0.1


class ScrubSession:
    """One connection to ``server``, for one thread. Every call raises StorageUnavailable."""

    def __init__(self, server: MySqlServer, connection: Connection[Any]) -> None:
        self.server = server
        self._connection = connection

    def wait(self, done: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
        """Until ``done``, looked at some times a second. ``what``: for the error."""
        end_s = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > end_s:
                raise StorageUnavailable(f"waited {timeout_s:.0f} s for {what}")
            time.sleep(_POLL_S)

    def rows(self, sql: str) -> Sequence[tuple[Any, ...]]:
        """The rows of one statement."""
        try:
            return tuple(query(self._connection, sql))
        except (pymysql.err.MySQLError, OSError) as error:
            raise failed(self.server, error, "not scrubbed") from error

    def all(self, statements: Sequence[str]) -> None:
        """Runs several statements, in one packet."""
        try:
            query_all(self._connection, statements)
        except (pymysql.err.MySQLError, OSError) as error:
            raise failed(self.server, error, "not scrubbed") from error
