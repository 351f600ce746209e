"""A node comes back to its cluster: as the minion that it is, or after what it never sent on was put again.

An old master may hold cells that no minion had when another node became master. Nobody was shown them, and the new master may have given their ids to other
cells. So it may only follow again when it is a prefix of the new master's history; otherwise :func:`extra_cells` lists what it has beyond, the caller puts
them again as ordinary puts (they get new ids), and :func:`clone` makes the node a copy of the master.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

from pymysql.connections import Connection
from pymysql.cursors import SSCursor

from store.body_codec import decode_body
from store.cells import NewCell, StoredCell
from store.clusters.failover import cluster_role
from store.clusters.roles import Role
from store.clusters.storage import ClusterServers
from store.engines.mysql import MySqlEngine
from store.engines.mysql_connections import MySqlServer, query
from store.engines.mysql_replication import Gtid, follow, make_read_only, minion_status, position, set_semi_sync, stop_following
from store.errors import ProtectData
from store.failpoints import declare, failpoint

declare("rejoin.after_wipe", "rejoin.after_copy")

_log = logging.getLogger("cellfeed.failover")
_SCAN_CELLS: Final = 5_000
_COPY_ROWS: Final = 2_000
"""Rows in one INSERT of a clone, which is cut by bytes as well."""

_COPY_BYTES: Final = 8 << 20


def is_prefix(cluster: ClusterServers, node: str, role: Role) -> bool:
    """Whether all that the node has was on the master when it became master (or came from it since)."""
    server, master = cluster.server(node), cluster.server(role.master)
    status = minion_status(server)
    if status is not None and (status.master_host, status.master_port) == master.address.replication and not status.error:
        return True
    limit = Gtid(role.promoted_at).sequence if role.promoted_at else position(master).sequence
    return position(server).sequence <= limit


def extra_cells(cluster: ClusterServers, node: str, role: Role) -> Iterator[tuple[int, StoredCell]]:
    """``(shard, cell)`` of all cells that the node has at ids which the new master gave out itself: they were never replicated."""
    own = MySqlEngine(MySqlServer(cluster.server(node).address), cluster.datastore, cluster.shards)
    master = MySqlEngine(MySqlServer(cluster.server(role.master).address), cluster.datastore, cluster.shards)
    try:
        for shard, head in own.heads().items():
            begins = [first for later, first in master.leader_epochs(shard) if later > head.leader_epoch]
            location = min(begins, default=head.next_added_id)
            while cells := own.scan(shard, location, _SCAN_CELLS):
                yield from ((shard, cell) for cell in cells)
                location = cells[-1].added_id + 1
    finally:
        own.close()
        master.close()


def extra_buffered(cluster: ClusterServers, node: str) -> list[NewCell]:
    """The cells of other clusters that the node's buffer answers for."""
    sql = f"SELECT row_key, column_name, ref_key, body FROM {cluster.meta}.buffered_cell WHERE accepted = 1"
    with cluster.server(node).connection() as connection:
        return [NewCell(row, column.decode(), int(ref_key), decode_body(body)) for row, column, ref_key, body in query(connection, sql)]


def follow_again(cluster: ClusterServers, node: str) -> None:
    """Makes the node a minion of the present master. Raises ProtectData when it has something that the master has not."""
    role, _ = cluster_role(cluster)
    if node == role.master:
        raise ProtectData(f"{node} is the master of cluster {cluster.name}")
    if not is_prefix(cluster, node, role):
        raise ProtectData(
            f"{node} is at {position(cluster.server(node)).text} and {role.master} was at {role.promoted_at} when it became master: {node} holds what was "
            "never replicated; list it, have it put again and the node cloned with `cellfeed cluster rejoin --put-again`"
        )
    set_semi_sync(cluster.server(node), master=False, wanted=role.semi_sync)
    follow(cluster.server(node), cluster.server(role.master))


def clone(cluster: ClusterServers, node: str, on_rows: Callable[[int], None] = lambda _: None) -> int:
    """Makes the node a copy of the present master as of one moment, and its minion from there on. Returns the rows copied.

    What the node held of the datastore is dropped first. A kill on the way leaves a node that follows nobody and tells no role; cloning again starts over.
    """
    role, _ = cluster_role(cluster)
    if node == role.master:
        raise ProtectData(f"{node} is the master of cluster {cluster.name}")
    target, source = cluster.server(node), cluster.server(role.master)
    stop_following(target)
    make_read_only(target)
    # Nobody is acknowledged here any more; and what is done to it from here on must not wait for minions that it does not have.
    set_semi_sync(target, master=False, wanted=role.semi_sync)
    _wipe(cluster, target)
    failpoint("rejoin.after_wipe")
    copied, snapshot = _copy(cluster, source, target, on_rows)
    with target.connection() as connection:
        # Its own history is another one, and is forgotten; from here on it has what the snapshot had.
        query(connection, "RESET MASTER")
        query(connection, f"SET GLOBAL gtid_slave_pos = '{snapshot}'")
    failpoint("rejoin.after_copy")
    follow(target, source)
    return copied


def _databases(cluster: ClusterServers, server: MySqlServer) -> list[str]:
    with server.connection() as connection:
        names = [name for (name,) in query(connection, "SHOW DATABASES")]
    prefix = f"{cluster.datastore}_"
    return [name for name in names if name == cluster.meta or (name.startswith(prefix) and name.removeprefix(prefix).isdigit())]


def _wipe(cluster: ClusterServers, target: MySqlServer) -> None:
    # The meta database first: without it the node tells no role and takes no part, whatever else is still there.
    for name in sorted(_databases(cluster, target), key=lambda name: name != cluster.meta):
        with target.connection() as connection:
            query(connection, "SET SESSION sql_log_bin = 0")
            query(connection, f"DROP DATABASE {name}")
            query(connection, "SET SESSION sql_log_bin = 1")


def _copy(cluster: ClusterServers, source: MySqlServer, target: MySqlServer, on_rows: Callable[[int], None]) -> tuple[int, str]:
    copied = 0
    reading, writing = source.open_connection(), target.open_connection()
    try:
        query(writing, "SET SESSION sql_log_bin = 0, foreign_key_checks = 0, unique_checks = 0")
        query(reading, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        query(reading, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        told = dict(query(reading, "SHOW STATUS LIKE 'binlog_snapshot_%'"))
        file, offset = told["Binlog_snapshot_file"], int(told["Binlog_snapshot_position"])
        [(snapshot,)] = query(reading, f"SELECT BINLOG_GTID_POS('{file}', {offset})")
        # The meta database last: a copy that was cut short tells no role.
        for database in sorted(_databases(cluster, source), key=lambda name: name == cluster.meta):
            query(writing, f"CREATE DATABASE {database} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
            for (table,) in query(reading, f"SHOW TABLES IN {database}"):
                [(_, create)] = query(reading, f"SHOW CREATE TABLE {database}.{table}")
                query(writing, create.replace("CREATE TABLE ", f"CREATE TABLE {database}.", 1))
                for rows in _batches(reading, f"{database}.{table}"):
                    query(writing, f"INSERT INTO {database}.{table} VALUES {','.join(rows)}")
                    copied += len(rows)
                    on_rows(copied)
        query(reading, "ROLLBACK")
    finally:
        reading.close()
        writing.close()
    return copied, str(snapshot)


def _batches(reading: Connection[Any], table: str) -> Iterator[list[str]]:
    """The rows of a table as SQL literals, a batch at a time, streamed."""
    rows: list[str] = []
    size = 0
    with reading.cursor(SSCursor) as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        for row in cursor:
            literals = ",".join(map(_literal, row))
            rows.append(f"({literals})")
            size += len(literals)
            if len(rows) == _COPY_ROWS or size > _COPY_BYTES:
                yield rows
                rows, size = [], 0
    if rows:
        yield rows


def _literal(value: bytes | str | None) -> str:
    """Numbers and moments come as text, everything else (this schema has only binary columns) as bytes."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return f"'{value}'"
    return f"X'{value.hex()}'"
