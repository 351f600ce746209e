"""The numbers of fences in the file of an embedded store's indexes (X6). The table is made with the
first raise."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from cellfeed.store.errors import StaleView


def numbers_of(connection: sqlite3.Connection, shards: Sequence[int]) -> dict[int, int]:
    """By shard; those that were never raised are left out."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'index_fence'").fetchall():
        return {}
    numbers: dict[int, int] = dict(connection.execute("SELECT shard, number FROM index_fence"))
    return {shard: numbers[shard] for shard in shards if shard in numbers}


def raise_to(connection: sqlite3.Connection, numbers: Mapping[int, int]) -> None:
    """In a transaction. A number that is higher already stays."""
    connection.execute(
        "CREATE TABLE IF NOT EXISTS index_fence (shard INTEGER PRIMARY KEY, number INTEGER"
        " NOT NULL) STRICT"
    )
    connection.executemany(
        "INSERT INTO index_fence (shard, number) VALUES (?, ?) ON CONFLICT (shard) DO"
        " UPDATE SET number = max(number, excluded.number)",
        list(numbers.items()),
    )


def check(connection: sqlite3.Connection, fences: Mapping[int, int]) -> None:
    """In a write's transaction. Raises StaleView."""
    for shard, number in fences.items():
        if connection.execute(
            "SELECT number FROM index_fence WHERE shard = ?", (shard,)
        ).fetchone() != (number,):
            raise StaleView(
                f"nothing written: cells of shard {shard} were trimmed or erased since the ones"
                " were read that the entries come of"
            )
