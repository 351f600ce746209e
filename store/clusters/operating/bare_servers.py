"""Servers that are to become a cluster: whether they are bare, and their turn into minions."""

from __future__ import annotations

from typing import Final

from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.engines.mysql.checks import check_server, refuse
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.replication import check_mariadb, follow, minion_status
from cellfeed.store.engines.mysql.semi_sync import set_semi_sync
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import ProtectData

_OF_THE_SERVER: Final = frozenset({"mysql", "information_schema", "performance_schema", "sys"})


def check_servers(cluster: ClusterServers) -> None:
    """Changes nothing. Raises ProtectData for servers that cannot become a cluster, Unavailable for
    one that does not answer."""
    master_name, *minion_names = cluster.servers
    for server in cluster.servers.values():
        if minion_names:
            check_mariadb(server)
        with server.connection() as connection:
            refuse(server, check_server(connection, managed=server.address.managed))
    for name in minion_names:
        _follows_already(cluster, name, cluster.server(master_name))


def _follows_already(cluster: ClusterServers, name: str, master: MySqlServer) -> bool:
    """Whether an earlier run made it a minion. Raises ProtectData for a server that cannot be made
    one."""
    server = cluster.server(name)
    status = minion_status(server)
    if (
        status is not None
        and (status.master_host, status.master_port) == master.address.replication
        and not status.error
    ):
        return True
    if status is not None:
        raise ProtectData(
            f"{name} follows {status.master_host}:{status.master_port} already; RESET SLAVE ALL"
            " there first if that is over"
        )
    for each in (server, master):
        if (
            foreign := _databases(each)
            - _OF_THE_SERVER
            - _of_the_datastore(cluster, each)
            - {cluster.promised}
        ):
            raise ProtectData(
                f"{each} is not bare: it holds {', '.join(sorted(foreign)[:5])}; a cluster is made"
                " of servers that hold nothing else"
            )
    if _databases(server) & _of_the_datastore(cluster, server):
        raise ProtectData(
            f"{name} holds databases of {cluster.datastore!r}, but no role; make it a copy of the"
            " master with `cellfeed cluster rejoin` instead"
        )
    return False


def make_minion(cluster: ClusterServers, name: str, master: MySqlServer) -> None:
    if _follows_already(cluster, name, master):
        return
    server = cluster.server(name)
    # Both are bare: the writes of their installation are no history to share, and would stand in
    # the way of the master's.
    if not _databases(master) & _of_the_datastore(cluster, master) and not _has_minions(master):
        _reset_history(master)
    _reset_history(server)
    set_semi_sync(server, master=False, wanted=cluster.semi_sync)
    follow(server, master)


def _reset_history(server: MySqlServer) -> None:
    with server.connection() as connection:
        query(connection, "RESET MASTER")
        query(connection, "SET GLOBAL gtid_slave_pos = ''")


def _has_minions(master: MySqlServer) -> bool:
    with master.connection() as connection:
        return any(
            command == "Binlog Dump"
            for (command,) in query(
                connection, "SELECT COMMAND FROM information_schema.PROCESSLIST"
            )
        )


def has_state(cluster: ClusterServers, server: MySqlServer) -> bool:
    if cluster.meta not in _databases(server):
        return False
    with server.connection() as connection:
        return "state_entry" in {
            table for (table,) in query(connection, f"SHOW TABLES IN {cluster.meta}")
        }


def _databases(server: MySqlServer) -> set[str]:
    with server.connection() as connection:
        return {name for (name,) in query(connection, "SHOW DATABASES")}


def _of_the_datastore(cluster: ClusterServers, server: MySqlServer) -> set[str]:
    prefix = f"{cluster.datastore}_"
    return {
        name
        for name in _databases(server)
        if name == cluster.meta or (name.startswith(prefix) and name.removeprefix(prefix).isdigit())
    }
