"""Makes a node a copy of the present master, as of one moment, and a minion from there on.

A node without any cells, or with more than the master has, rejoins in this way (``rejoin.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import SSCursor

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.operating.never_replicated import NeverReplicated
from cellfeed.store.clusters.operating.present_role import (
    QUICK_TIMEOUT_S,
    cluster_role,
    locked_role,
)
from cellfeed.store.clusters.operating.rejoin import follow_again
from cellfeed.store.engines.mysql.connections import MySqlServer, has_database
from cellfeed.store.engines.mysql.errors import failed
from cellfeed.store.engines.mysql.operation_locks import copy_lock
from cellfeed.store.engines.mysql.read_only import make_read_only
from cellfeed.store.engines.mysql.replication import position, stop_following
from cellfeed.store.engines.mysql.semi_sync import set_semi_sync
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import ProtectData, StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint

declare("rejoin.after_wipe", "rejoin.after_copy", "rejoin.after_position", "rejoin.after_meta")

_COPY_ROWS: Final = 2_000
"""Rows in one INSERT of a clone, which is cut by bytes as well."""

_COPY_BYTES: Final = 8 << 20

_STATE_LAST: Final = "state_entry"
"""The table with the role: a node that reports a role has everything else."""


def is_half_copied(cluster: ClusterServers, node: str) -> bool:
    """Whether a copy to the node was cut off: it has to begin again."""
    return has_database(cluster.server(node), cluster.copying)


def clone(
    cluster: ClusterServers,
    node: str,
    on_rows: Callable[[int], None] = lambda _: None,
    *,
    listed: NeverReplicated | None = None,
    cut_off: bool = False,
) -> int:
    """Makes the node a copy of the present master as of one moment, and a minion from there on.
    Returns the rows copied. ``listed``: the cells that it had alone, which were put again; only if
    it has written nothing since. ``cut_off``: only if it is half a copy, which somebody else may
    have ended by now.

    The node's databases of the datastore are dropped first. The meta database comes last, out of
    the database that marks a copy under way. So a kill on the way leaves a node that follows
    nobody, reports no role and is known to be half a copy (:func:`is_half_copied`); cloning again
    starts over. Raises StorageUnavailable when somebody else is copying to the node, or when tables
    of the master got other names meanwhile, as a move gives them: clone again. Raises ProtectData
    when the node has written since it was listed.
    """
    cluster.refuse_managed("rejoin")
    role, _ = cluster_role(cluster)
    target, source = cluster.server(node), cluster.server(role.master)
    with copy_lock(source, node):
        if cut_off and not is_half_copied(cluster, node):
            raise StorageUnavailable(f"{node} is no half copy any more: somebody else has ended it")
        _give_up_history(cluster, node, role, listed)
        _wipe(cluster, target)
        failpoint("rejoin.after_wipe")
        copied, snapshot = _copy(cluster, source, target, on_rows)
        failpoint("rejoin.after_copy")
        with target.connection() as connection:
            # Its own history is another one, and is forgotten; from here on its position is the
            # snapshot's.
            query(connection, "RESET MASTER")
            query(connection, f"SET GLOBAL gtid_slave_pos = '{snapshot}'")
        failpoint("rejoin.after_position")
        _move_meta(cluster, target)
        failpoint("rejoin.after_meta")
        _unlogged(target, f"DROP DATABASE {cluster.copying}")
    follow_again(cluster, node)
    return copied


def _give_up_history(
    cluster: ClusterServers, node: str, expected: Role, listed: NeverReplicated | None
) -> None:
    """The node reports no role from here on, so no promotion chooses it; none is under way
    meanwhile. Raises ProtectData for the master itself, and for a node that has written since it
    was listed, StorageUnavailable when there is another master by now."""
    target = cluster.server(node)
    quick = cluster.with_timeout(QUICK_TIMEOUT_S)
    try:
        with locked_role(cluster, quick) as role:
            if node == role.master:
                raise ProtectData(f"{node} is the master of cluster {cluster.name}")
            if role.epoch != expected.epoch:
                raise StorageUnavailable(
                    f"cluster {cluster.name} has another master by now, {role.master}; copy again"
                )
            stop_following(target)
            make_read_only(target)
            if listed is not None and position(target) != listed.position:
                raise ProtectData(
                    f"{node} was at {listed.position.text} when it was listed, and is at"
                    f" {position(target).text}: it has to be listed again"
                )
            # Nobody is acknowledged here any more; and changes to it from here on must not wait for
            # minions that it does not have.
            set_semi_sync(target, master=False, wanted=role.semi_sync)
            # The mark before anything is gone.
            _unlogged(
                target,
                f"CREATE DATABASE IF NOT EXISTS {cluster.copying} CHARACTER SET utf8mb4 COLLATE"
                " utf8mb4_bin",
            )
            _unlogged(target, f"DROP DATABASE IF EXISTS {cluster.meta}")
    finally:
        quick.close()


def _databases(cluster: ClusterServers, server: MySqlServer) -> list[str]:
    with server.connection() as connection:
        names = [name for (name,) in query(connection, "SHOW DATABASES")]
    prefix = f"{cluster.datastore}_"
    return [
        name
        for name in names
        if name == cluster.meta or (name.startswith(prefix) and name.removeprefix(prefix).isdigit())
    ]


def _tables(server: MySqlServer, database: str) -> list[str]:
    with server.connection() as connection:
        return [table for (table,) in query(connection, f"SHOW TABLES IN {database}")]


def _unlogged(target: MySqlServer, statement: str) -> None:
    """Runs a statement that is no part of the cluster's history."""
    with target.connection() as connection:
        query(connection, "SET SESSION sql_log_bin = 0")
        query(connection, statement)
        query(connection, "SET SESSION sql_log_bin = 1")


def _wipe(cluster: ClusterServers, target: MySqlServer) -> None:
    for name in _databases(cluster, target):
        _unlogged(target, f"DROP DATABASE {name}")
    for table in _tables(target, cluster.copying):
        _unlogged(target, f"DROP TABLE {cluster.copying}.{table}")


def _move_meta(cluster: ClusterServers, target: MySqlServer) -> None:
    """The meta database out of the copy's mark, the role last."""
    _unlogged(target, f"CREATE DATABASE {cluster.meta} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
    for table in sorted(_tables(target, cluster.copying), key=lambda table: table == _STATE_LAST):
        _unlogged(target, f"RENAME TABLE {cluster.copying}.{table} TO {cluster.meta}.{table}")


def _copy(
    cluster: ClusterServers,
    source: MySqlServer,
    target: MySqlServer,
    on_rows: Callable[[int], None],
) -> tuple[int, str]:
    """Rows and the GTID position of one snapshot. A snapshot is of rows, not of tables: a table
    that is made, renamed or dropped behind it would be copied as it is then. The node would stop at
    that statement when it reaches it in the log. So the tables are those from before the snapshot,
    and the same ones must be there at the end. A table that was renamed there and back meanwhile is
    renamed there and back in the log, too."""
    copied = 0
    reading, writing = source.open_connection(), target.open_connection()
    try:
        query(writing, "SET SESSION sql_log_bin = 0, foreign_key_checks = 0, unique_checks = 0")
        query(reading, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        tables = _all_tables(cluster, source)
        query(reading, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        status = dict(query(reading, "SHOW STATUS LIKE 'binlog_snapshot_%'"))
        file, offset = status["Binlog_snapshot_file"], int(status["Binlog_snapshot_position"])
        [(snapshot,)] = query(reading, f"SELECT BINLOG_GTID_POS('{file}', {offset})")
        for database, names in tables.items():
            into = cluster.copying if database == cluster.meta else database
            if into == database:
                query(
                    writing, f"CREATE DATABASE {database} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
                )
            for table in names:
                [(_, create)] = query(reading, f"SHOW CREATE TABLE {database}.{table}")
                query(writing, create.replace("CREATE TABLE ", f"CREATE TABLE {into}.", 1))
                for rows in _batches(reading, f"{database}.{table}"):
                    query(writing, f"INSERT INTO {into}.{table} VALUES {','.join(rows)}")
                    copied += len(rows)
                    on_rows(copied)
        if (
            _all_tables(cluster, source) != tables
        ):  # looked at while the snapshot still keeps those that were read from being changed
            raise StorageUnavailable(
                f"{source}: tables were made, renamed or dropped while they were copied to"
                f" {target}, as a move of a shard does: copy again"
            )
        query(reading, "ROLLBACK")
    except (pymysql.err.MySQLError, OSError) as error:
        raise failed(f"{source} to {target}", error, "the copy is not whole") from error
    finally:
        reading.close()
        writing.close()
    return copied, str(snapshot)


def _all_tables(cluster: ClusterServers, server: MySqlServer) -> dict[str, list[str]]:
    """By database of the datastore."""
    return {database: _tables(server, database) for database in _databases(cluster, server)}


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
    """Numbers and moments come as text, everything else (this schema has only binary columns) as
    bytes."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return f"'{value}'"
    return f"X'{value.hex()}'"
