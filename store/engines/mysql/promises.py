"""The promise that a node keeps for itself: the highest epoch of a promotion that began.

It lies in a database of its own, which is neither replicated nor copied
(:mod:`cellfeed.store.clusters.model.promises`).
"""

from __future__ import annotations

from cellfeed.store.engines.mysql.connections import MySqlServer, has_database
from cellfeed.store.engines.mysql.statements import query


def promised_database(datastore: str) -> str:
    return f"{datastore}_promised"


def read_promise(server: MySqlServer, database: str, history_id: str) -> int:
    """The highest epoch that the node has promised in this history; -1 when none. Raises
    StorageUnavailable."""
    if not has_database(server, database):
        return -1
    with server.connection() as connection:
        rows = query(
            connection,
            f"SELECT epoch FROM {database}.promise WHERE history_id ="
            f" X'{history_id.encode().hex()}'",
        )
    return int(rows[0][0]) if rows else -1


def write_promise(server: MySqlServer, database: str, history_id: str, epoch: int) -> None:
    """Has the node remember the epoch, unless it remembers a higher one. Raises
    StorageUnavailable."""
    with server.connection() as connection:
        # Each node's own: not through the log, which a minion only takes from its master.
        query(connection, "SET SESSION sql_log_bin = 0")
        query(
            connection,
            f"CREATE DATABASE IF NOT EXISTS {database} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        )
        columns = "history_id VARBINARY(64) NOT NULL PRIMARY KEY, epoch INT UNSIGNED NOT NULL"
        query(
            connection,
            f"CREATE TABLE IF NOT EXISTS {database}.promise ({columns}) ENGINE=InnoDB",
        )
        behind = "ON DUPLICATE KEY UPDATE epoch = GREATEST(epoch, VALUES(epoch))"
        query(
            connection,
            f"INSERT INTO {database}.promise VALUES (X'{history_id.encode().hex()}', {epoch})"
            f" {behind}",
        )
        query(connection, "SET SESSION sql_log_bin = 1")
