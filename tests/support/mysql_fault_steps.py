"""Cells, servers and waits that the tests of MySQL faults share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

from pymysql.connections import Connection

from cellfeed.store.cells.cell import NewCell, new_cell
from cellfeed.store.engines.mysql import connection
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import CellfeedError

SHARDS = 4

TIMEOUT_S = 1.0
"""Of the connections in tests that wait for it to pass."""


class _InThread(threading.Thread):
    """Runs ``call`` in a thread of its own."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._error: CellfeedError | None = None
        self.start()

    def run(self) -> None:
        try:
            self._call()
        except CellfeedError as error:
            self._error = error

    def error(self) -> CellfeedError | None:
        """The error that the call raised, once it has ended."""
        self.join(30)
        assert not self.is_alive()
        return self._error


def open_engine(
    port: int, *, create: bool = False, timeout_s: float = connection.TIMEOUT_S, user: str = "root"
) -> MySqlEngine:
    return MySqlEngine(
        MySqlServer(f"mysql://{user}@127.0.0.1:{port}", timeout_s), "trips", SHARDS, create=create
    )


def cells(count: int, first: int = 0) -> list[NewCell]:
    return [new_cell(UUID(int=n), "BASE", 1, {"n": n}) for n in range(first, first + count)]


def stored(connection: Connection[Any]) -> int:
    return sum(
        int(count)
        for shard in range(SHARDS)
        for (count,) in query(connection, f"SELECT COUNT(*) FROM trips_{shard:04d}.cell")
    )


def assert_log_is_whole(engine: MySqlEngine, count: int) -> None:
    """Gapless from 0 on every shard, ``count`` cells in all, and the counters agree."""
    heads = engine.heads()
    logs = {shard: engine.scan(shard, 0, 10_000) for shard in range(SHARDS)}
    for shard, log in logs.items():
        assert [cell.added_id for cell in log] == list(range(heads[shard].next_added_id))
    assert sum(map(len, logs.values())) == count
