"""A node rejoins its cluster: as the minion that it is, or after the cells that it never replicated
were put again.

An old master may hold cells that no minion had when another node became master. Nobody was shown
them, and the new master may have given their ids to other cells. So it may only follow again when
it is a prefix of the new master's history. Otherwise :func:`come_back` lists the cells and erasures
that it has beyond. The caller repeats them, as ordinary puts (they get new ids) and erasures. Then
:func:`clone` makes the node a copy of the master. Often there are none, only entries that the
processes write of themselves (leases, addresses): then a copy loses nothing, and needs nobody's
word.

An old master that nobody could fence, because it was paused or cut off, continues where it was: a
commit that was on its way ends, and a writer that has not heard of the promotion may still be
acknowledged there. So it is fenced *before* it is looked at, and a copy that follows on a list
refuses a node that has written since.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import SSCursor

from cellfeed.store.cells.body_codec import decode_body, is_erased
from cellfeed.store.cells.cell import ERASED_COLUMN, NewCell, StoredCell
from cellfeed.store.clusters.model.promises import refuse_promised
from cellfeed.store.clusters.model.roles import Role, change_role, read_role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.operating.promote import QUICK_TIMEOUT_S, cluster_role, settled_role
from cellfeed.store.engines.mysql.connections import MySqlServer, has_database, query
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.errors import failed
from cellfeed.store.engines.mysql.replication import (
    Gtid,
    copy_lock,
    follow,
    is_read_only,
    make_read_only,
    minion_status,
    position,
    set_semi_sync,
    start_receiving,
    stop_following,
)
from cellfeed.store.engines.mysql.state import MySqlState
from cellfeed.store.errors import HoldsMore, ProtectData, StorageUnavailable, Unavailable
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.histories import refuse_other_history

declare(
    "rejoin.after_record",
    "rejoin.after_wipe",
    "rejoin.after_copy",
    "rejoin.after_position",
    "rejoin.after_meta",
)

_log = logging.getLogger("cellfeed.failover")
_SCAN_CELLS: Final = 5_000
_COPY_ROWS: Final = 2_000
"""Rows in one INSERT of a clone, which is cut by bytes as well."""

_COPY_BYTES: Final = 8 << 20
_STATE_LAST: Final = "state_entry"
"""The table with the role: a node that tells a role has everything else."""


@dataclass(frozen=True)
class NeverReplicated:
    """What a node has beyond the history that it shares with its master. ``cells``: of its own
    shards; ``buffered``: of other clusters, which its buffer answers for; ``erased``: row keys, to
    be erased again; ``position``: where the node was before it was looked through. No cell of an
    erased row is listed.

    Trims are not listed: they took only cells that every node had, and a trim is answered when a
    minion has it. One that was not answered is repeated."""

    cells: list[NewCell]
    buffered: list[NewCell]
    erased: list[bytes]
    position: Gtid

    @property
    def nothing(self) -> bool:
        """Whether no cell and no erasure is among it."""
        return not self.cells and not self.buffered and not self.erased

    def __str__(self) -> str:
        erased = f" and {len(self.erased)} erasures" if self.erased else ""
        return f"{len(self.cells) + len(self.buffered)} cells{erased}"


def heard_epoch(cluster: ClusterServers, node: str) -> int | None:
    """The epoch of the role that the node has heard of; None when it tells none (a bare server, or
    half a copy)."""
    role = told_role(cluster, node)
    return role.epoch if role else None


def told_role(cluster: ClusterServers, node: str) -> Role | None:
    """The role that the node has heard of, of whichever cluster and history; None when it tells
    none."""
    server = cluster.server(node)
    return (
        read_role(MySqlState(server, cluster.meta)) if has_database(server, cluster.meta) else None
    )


def is_prefix(cluster: ClusterServers, node: str, role: Role) -> bool:
    """Whether all that the node has is on the master as well, so that it may follow it.

    The node's position is compared with that of the *first* promotion that it has not heard of:
    that new master had all that the node shares with it, and later positions count later writes of
    others.
    """
    server, master = cluster.server(node), cluster.server(role.master)
    status = minion_status(server)
    if status is not None and status.follows(master) and not status.error:
        return True
    heard = heard_epoch(cluster, node)
    if heard is None:
        return False
    limit = role.promotion_after(heard)
    return (
        position(server).sequence <= (position(master) if limit is None else Gtid(limit)).sequence
    )


def is_half_copied(cluster: ClusterServers, node: str) -> bool:
    """Whether a copy to the node was cut off: it has to begin again."""
    return has_database(cluster.server(node), cluster.copying)


def never_replicated(cluster: ClusterServers, node: str, role: Role) -> NeverReplicated:
    """What would be lost if the node became a copy of the master now. Raises StorageUnavailable."""
    at = position(cluster.server(node))
    extra = [cell for _, cell in extra_cells(cluster, node, role)]
    erased = list({cell.row_key: None for cell in extra if cell.column_name == ERASED_COLUMN})
    cells = [
        NewCell(cell.row_key, cell.column_name, cell.ref_key, decode_body(cell.body))
        for cell in extra
        if not is_erased(cell.body) and cell.row_key not in erased
    ]
    buffered = [cell for cell in extra_buffered(cluster, node) if cell.row_key not in erased]
    return NeverReplicated(cells, buffered, erased, at)


def extra_cells(cluster: ClusterServers, node: str, role: Role) -> Iterator[tuple[int, StoredCell]]:
    """``(shard, cell)`` of all cells that the node has at ids which the new master gave out itself:
    they were never replicated."""
    own = MySqlEngine(MySqlServer(cluster.server(node).address), cluster.datastore, cluster.shards)
    master = MySqlEngine(
        MySqlServer(cluster.server(role.master).address), cluster.datastore, cluster.shards
    )
    try:
        for shard, head in own.heads().items():
            begins = [
                first for later, first in master.leader_epochs(shard) if later > head.leader_epoch
            ]
            location = min(begins, default=head.next_added_id)
            while cells := own.scan(shard, location, _SCAN_CELLS):
                yield from ((shard, cell) for cell in cells)
                location = cells[-1].added_id + 1
    finally:
        own.close()
        master.close()


def extra_buffered(cluster: ClusterServers, node: str) -> list[NewCell]:
    """The cells of other clusters that the node's buffer answers for."""
    sql = (
        f"SELECT row_key, column_name, ref_key, body FROM {cluster.meta}.buffered_cell WHERE"
        " accepted = 1"
    )
    with cluster.server(node).connection() as connection:
        return [
            NewCell(row, column.decode(), int(ref_key), decode_body(body))
            for row, column, ref_key, body in query(connection, sql)
        ]


def come_back(cluster: ClusterServers, node: str) -> NeverReplicated | None:
    """Fences the node and makes it a minion. Where it has something that the master has not,
    returns that, to be put again before :func:`clone`. Raises as :func:`follow_again`."""
    try:
        follow_again(cluster, node)
    except HoldsMore:
        role, _ = cluster_role(cluster)
        return never_replicated(cluster, node, role)
    return None


def follow_again(cluster: ClusterServers, node: str) -> None:
    """Fences the node and makes it a minion of the present master. Raises HoldsMore, having fenced
    it, when it has something that the master has not. Raises ProtectData for the master itself.
    Raises StorageUnavailable while a promotion is under way, or where the node holds nothing to
    resume from."""
    quick = cluster.with_timeout(QUICK_TIMEOUT_S)
    try:
        with settled_role(cluster, quick) as role:
            _follow_again(cluster, quick, node, role)
    finally:
        quick.close()


def _follow_again(cluster: ClusterServers, quick: ClusterServers, node: str, role: Role) -> None:
    server = cluster.server(node)
    if node == role.master:
        raise ProtectData(f"{node} is the master of cluster {cluster.name}")
    _refuse_foreign(cluster, node, role)
    if not is_read_only(server):
        make_read_only(server)
        _log.warning(
            "cluster %s: %s is back and was master once; it is read-only now", cluster.name, node
        )
    refuse_promised(quick, role)
    if not is_prefix(cluster, node, role):
        heard = heard_epoch(cluster, node)
        if heard is None:
            raise StorageUnavailable(
                f"{node} holds nothing of the datastore, or a copy to it is under way: `cellfeed"
                f" cluster status`, and if need be `cellfeed cluster rejoin {cluster.name} {node}"
                " --copy`"
            )
        at = role.promotion_after(heard)
        raise HoldsMore(
            f"{node} is at {position(server).text}, and the first master that it has not heard of"
            f" was at {at or 'a position not known any more'}: {node} holds what was never"
            " replicated; list it, have it put again and the node cloned with `cellfeed cluster"
            " rejoin --put-again`"
        )
    # Recorded before it follows, so that nobody is shown what only it and the master have while a
    # promotion could go on without it; where no other minion is left that a semi-synchronous commit
    # could wait for, it has to be there for that itself.
    joined = role.with_minion(node, semi_sync=cluster.semi_sync)
    recorded = _is_recorded(quick, role, joined)
    failpoint("rejoin.after_record")
    set_semi_sync(server, master=False, wanted=joined.semi_sync)
    if joined.semi_sync and not role.semi_sync:
        set_semi_sync(
            cluster.server(role.master), master=True, wanted=True
        )  # also for processes that have not heard of the first minion yet
    follow(server, cluster.server(role.master))
    if not recorded and not _is_recorded(cluster, role, joined):
        raise StorageUnavailable(
            f"{node} follows {role.master}, which could not write down that it is a minion again;"
            " rejoin it once more"
        )


def _refuse_foreign(cluster: ClusterServers, node: str, role: Role) -> None:
    """Raises ProtectData for a server of another cluster or history. It is left alone: its writers
    have nothing to do with a wrong address here."""
    told = told_role(cluster, node)
    if told is None:
        return
    if told.cluster != role.cluster:
        raise ProtectData(
            f"{node}: {role.why_foreign(told)}. Nothing was done to it: name servers of cluster"
            f" {cluster.name} in the configuration"
        )
    refuse_other_history(
        f"nothing was done to {node}: it",
        told.history_id,
        f"cluster {cluster.name}",
        role.history_id,
        "Nothing of it may be put again; to make it a copy of the master: cellfeed cluster rejoin"
        f" {cluster.name} {node} --copy",
    )


def start_again(cluster: ClusterServers, node: str, epoch: int) -> None:
    """Starts a minion that has stopped; the next error stops it again. Nothing is done when the
    epoch is another one by now.

    A promotion stops minions too, and what one received after it was chosen from would be another
    history: so no promotion is under way meanwhile. Raises StorageUnavailable while one is.
    """
    quick = cluster.with_timeout(QUICK_TIMEOUT_S)
    try:
        with settled_role(cluster, quick) as role:
            refuse_promised(quick, role)
            if role.epoch == epoch:
                start_receiving(cluster.server(node))
    finally:
        quick.close()


def clone(
    cluster: ClusterServers,
    node: str,
    on_rows: Callable[[int], None] = lambda _: None,
    *,
    listed: NeverReplicated | None = None,
    cut_off: bool = False,
) -> int:
    """Makes the node a copy of the present master as of one moment, and a minion from there on.
    Returns the rows copied. ``listed``: what it had alone, which was put again; only if it has
    written nothing since. ``cut_off``: only if it is half a copy, which somebody else may have
    ended by now.

    The node's databases of the datastore are dropped first. The meta database comes last, out of
    the database that marks a copy under way. So a kill on the way leaves a node that follows
    nobody, tells no role and is known to be half a copy (:func:`is_half_copied`); cloning again
    starts over. Raises StorageUnavailable when somebody else is copying to the node, or when tables
    of the master got other names meanwhile, as a move gives them: clone again. Raises ProtectData
    when the node has written since it was listed.
    """
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
            # Its own history is another one, and is forgotten; from here on it has what the
            # snapshot had.
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
    """The node tells no role from here on, so no promotion chooses it; none is under way meanwhile.
    Raises ProtectData for the master itself, and for a node that has written since it was listed,
    StorageUnavailable when there is another master by now."""
    target = cluster.server(node)
    quick = cluster.with_timeout(QUICK_TIMEOUT_S)
    try:
        with settled_role(cluster, quick) as role:
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
            # Nobody is acknowledged here any more; and what is done to it from here on must not
            # wait for minions that it does not have.
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


def _is_recorded(cluster: ClusterServers, role: Role, joined: Role) -> bool:
    """Has the role name its minions: from then on no promotion proceeds without one, unless it is
    given up by name. False when that was not confirmed."""
    try:
        return change_role(
            MySqlState(cluster.server(role.master), cluster.meta, role.own_terms), role, joined
        )
    except Unavailable as error:
        _log.warning(
            "cluster %s: that %s are minions could not be written down yet: %s",
            cluster.name,
            " and ".join(joined.minions),
            error,
        )
        return False


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
        told = dict(query(reading, "SHOW STATUS LIKE 'binlog_snapshot_%'"))
        file, offset = told["Binlog_snapshot_file"], int(told["Binlog_snapshot_position"])
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
