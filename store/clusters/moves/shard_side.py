"""One shard on the master of one cluster, as a move sees and changes it, locked there: the cluster
may be the source of the move or its target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pymysql

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.moves.mover_lock import lock_name
from cellfeed.store.clusters.moves.source_side import SourceSide
from cellfeed.store.clusters.moves.target_side import TargetSide
from cellfeed.store.engines.mysql.errors import failed
from cellfeed.store.engines.mysql.locks import free_locks, take_lock
from cellfeed.store.errors import StorageUnavailable


class ShardSide(SourceSide, TargetSide):
    """Made by :func:`open_side`; for one thread."""


@contextmanager
def open_side(cluster: ClusterServers, role: Role, shard: int) -> Iterator[ShardSide]:
    """A shard on the master of that role, locked. Raises StorageUnavailable when another mover is
    at it, or the master does not answer."""
    server = cluster.server(role.master)
    connection = server.open_connection()
    try:
        try:
            got = take_lock(connection, lock_name(cluster, shard))
        except (pymysql.err.MySQLError, OSError) as error:
            raise failed(server, error) from error
        if not got:
            raise StorageUnavailable(
                f"shard {shard} is being moved already: cluster {cluster.name} is locked by another"
                " mover, which is alive"
            )
        yield ShardSide(cluster, role, shard, server, connection)
    finally:
        free_locks(connection)
