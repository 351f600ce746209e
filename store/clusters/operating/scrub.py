"""Scrubs the servers of a cluster: no byte of cells erased or trimmed before is left in their
files. The cluster is at work meanwhile.

Minions first, the master last, one server after the other
(:mod:`cellfeed.store.engines.mysql.scrub` has the steps of each); then, when every node has all
that the binary logs hold, the logs. All nodes have to be there: one that returns later would need
the deleted logs, and would have to become a copy of the master.

Which tables: the cells of shards that had an erasure or a trim; the tables of indexes in every
shard, since an entry seldom lies in the shard of its row; the state and the buffer. Checksums are
added in every shard. The scrub names shards that the cluster keeps after they left it, and does not
scrub them: ``cellfeed shard clean`` drops them.

Killed anywhere, it is run again. A promotion meanwhile does no harm: each step concerns one
server's own files, and a log is deleted only where every node has its transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cellfeed.store.cells import known_dictionaries
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_notes import HIDDEN
from cellfeed.store.clusters.operating.catch_up import wait_for_minions
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.dictionaries import MySqlDictionaries
from cellfeed.store.engines.mysql.scrub import ServerScrub, scrubbing
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import InvalidRequest, StorageUnavailable

_META_TABLES = ("buffered_cell", "state_entry")


@dataclass
class ScrubbedServer:
    """The result of scrubbing a server. ``checksums``: cells of an earlier version that got one.
    ``left``: places that may still have bytes, and damaged cells, each with the cure; empty when
    there are none."""

    cluster: str
    node: str
    tables: int = 0
    checksums: int = 0
    left: list[str] = field(default_factory=list)


def scrub_cluster(
    cluster: ClusterServers, on_step: Callable[[str], None] = lambda _: None
) -> list[ScrubbedServer]:
    """See the module. ``on_step`` gets the name of the next step. Raises StorageUnavailable when a
    node is away or does not follow: nothing is deleted then; InvalidRequest for anything but
    MariaDB."""
    cluster.refuse_managed("scrub")
    role, silent = cluster_role(cluster)
    if away := [f"{name} ({why})" for name, why in silent.items()] or [
        name for name in cluster.servers if name not in (role.master, *role.minions)
    ]:
        raise StorageUnavailable(
            f"cluster {cluster.name} is not scrubbed: every node has to be there and to follow"
            f" {role.master}: {'; '.join(away)}"
        )
    nodes = [*role.minions, role.master]
    for name in nodes:
        _check_mariadb(cluster.server(name))
    _caught_up(cluster, nodes, role.master)
    done = [_scrub(cluster, name, on_step) for name in nodes]
    on_step(f"{cluster.name}: binary logs")
    _caught_up(cluster, nodes, role.master)
    firsts = {}
    for each in done:
        with scrubbing(cluster.server(each.node), _scratch(cluster)) as server:
            firsts[each.node] = server.begin_binary_log()
    # Every node has all transactions of the files before these: so no minion of any of them, now or
    # after a promotion, asks for these files.
    _caught_up(cluster, nodes, role.master)
    for each in done:
        with scrubbing(cluster.server(each.node), _scratch(cluster)) as server:
            first = firsts[each.node]
            if first is not None and (why := server.remove_binary_logs(first)):
                each.left.append(why)
            if each.node != role.master:
                server.begin_relay_log()
            each.left += server.other_logs()
    return done


def _scrub(cluster: ClusterServers, name: str, on_step: Callable[[str], None]) -> ScrubbedServer:
    done = ScrubbedServer(cluster.name, name)
    concerned, kept = _shards_concerned(cluster, name)
    with (
        scrubbing(cluster.server(name), _scratch(cluster)) as server,
        known_dictionaries.source(MySqlDictionaries(cluster.server(name), cluster.meta).find),
    ):
        for database, table in server.tables(f"{cluster.datastore}_"):
            if table in ("cell", f"{HIDDEN}cell"):
                on_step(f"{name}: checksums of {database}.{table}")
                added, damaged = server.add_checksums(database, table)
                done.checksums += added
                if damaged:
                    first = ", ".join(map(str, damaged[:10]))
                    done.left.append(
                        f"{database}.{table}: {len(damaged)} damaged cells get no checksum, at"
                        f" added_id {first}: cellfeed check names them"
                    )
        for database, table in _tables(cluster, server, concerned):
            on_step(f"{name}: table {database}.{table}")
            server.rebuild(database, table)
            done.tables += 1
        on_step(f"{name}: undo logs and doublewrite buffer")
        left = [server.rewrite_undo()]
        on_step(f"{name}: redo log")
        left.append(server.rewrite_redo())
    done.left += [each for each in left if each is not None]
    if kept:
        done.left.append(
            f"the kept copies of shards that have left the cluster ({', '.join(map(str, kept))}):"
            " cellfeed shard clean, then scrub again"
        )
    return done


def _tables(
    cluster: ClusterServers, server: ServerScrub, concerned: Sequence[int]
) -> list[tuple[str, str]]:
    prefix = f"{cluster.datastore}_"
    of_shards = [
        (database, table)
        for database, table in server.tables(prefix)
        if table != "cell" or int(database.removeprefix(prefix)) in concerned
    ]
    return [*of_shards, *((cluster.meta, table) for table in _META_TABLES)]


def _shards_concerned(cluster: ClusterServers, name: str) -> tuple[list[int], list[int]]:
    """Shards with an erasure or a trim, and shards whose cells the cluster keeps after they moved
    away."""
    with cluster.server(name).connection() as connection:
        concerned = query(
            connection,
            f"SELECT shard FROM {cluster.meta}.shard_counter WHERE erasures > 0 OR log_start > 0",
        )
        kept = query(connection, f"SELECT shard FROM {cluster.meta}.shard_leaving ORDER BY shard")
    return [int(shard) for (shard,) in concerned], [int(shard) for (shard,) in kept]


def _check_mariadb(server: MySqlServer) -> None:
    with server.connection() as connection:
        [(version,)] = query(connection, "SELECT VERSION()")
    if "MariaDB" not in version:
        raise InvalidRequest(
            f"{server} is MySQL {version}, and a scrub is made of MariaDB's statements:"
            " docs/operate/scrub.md has it by hand"
        )


def _caught_up(cluster: ClusterServers, nodes: Sequence[str], master: str) -> None:
    wait_for_minions(
        cluster,
        master,
        [name for name in nodes if name != master],
        "scrub again when it is mended; nothing more was done",
    )


def _scratch(cluster: ClusterServers) -> str:
    return f"{cluster.datastore}_scrubbing"
