"""The holder of a shard's lock on a master: the mover that is at it, alive or dead."""

from __future__ import annotations

from typing import NamedTuple

import pymysql
from pymysql.constants import ER

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.engines.mysql.errors import error_code
from cellfeed.store.engines.mysql.statements import query


def lock_name(cluster: ClusterServers, shard: int) -> str:
    """The user lock of movers on a master."""
    return f"cellfeed-move-{cluster.datastore}-{shard}"


class LockOwner(NamedTuple):
    """The connection that holds a shard's lock on a master, by the server's number for it.
    ``silent_s``: for how long it has said nothing; 0 while a statement of it runs."""

    connection: int
    silent_s: float


def lock_owner(cluster: ClusterServers, role: Role, shard: int) -> LockOwner | None:
    """The holder of the shard's lock on the master of that role; None when nobody does. Raises
    StorageUnavailable."""
    sql = (
        "SELECT ID, IF(COMMAND = 'Sleep', TIME_MS / 1000, 0) FROM information_schema.PROCESSLIST"
        f" WHERE ID = IS_USED_LOCK('{lock_name(cluster, shard)}')"
    )
    with cluster.server(role.master).connection() as connection:
        rows = query(connection, sql)
    return LockOwner(int(rows[0][0]), float(rows[0][1])) if rows else None


def cut_off(cluster: ClusterServers, role: Role, owner: LockOwner) -> None:
    """Ends the connection that holds a lock, and its open transaction: its mover can do nothing
    more with it. Raises StorageUnavailable."""
    with cluster.server(role.master).connection() as connection:
        try:
            query(connection, f"KILL CONNECTION {owner.connection}")
        except pymysql.err.MySQLError as error:
            if error_code(error) != ER.NO_SUCH_THREAD:  # it has ended by itself
                raise
