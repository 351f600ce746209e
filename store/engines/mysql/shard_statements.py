"""The facts that all statements about cells share: the server, its databases, the counter locks."""

from __future__ import annotations

from collections.abc import Callable

from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.locked_counters import CounterLocks


class ShardStatements:
    """On one server. ``meta`` is the meta database; ``shard_database`` gives a shard's database;
    both are checked names."""

    def __init__(
        self,
        server: MySqlServer,
        meta: str,
        shard_database: Callable[[int], str],
        counters: CounterLocks,
    ) -> None:
        self._server = server
        self._meta = meta
        self._shard_database = shard_database
        self._counters = counters

    def _cell_table(self, shard: int) -> str:
        return f"{self._shard_database(shard)}.cell"
