"""The present master, by asking the nodes: the role of the highest epoch, and a lock under which no
promotion changes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cellfeed.store.clusters.model.roles import Role, newest, of_other_histories, read_role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.engines.mysql.connections import has_database
from cellfeed.store.engines.mysql.operation_locks import promotion_lock
from cellfeed.store.engines.mysql.read_only import is_read_only
from cellfeed.store.engines.mysql.state import MySqlState
from cellfeed.store.errors import CellfeedError, StorageUnavailable, Unavailable

QUICK_TIMEOUT_S: Final = 1.0
"""How long a node is waited for that may be the one that hangs, in seconds."""


def cluster_role(cluster: ClusterServers) -> tuple[Role, dict[str, str]]:
    """The role of the highest epoch that a node reports, and why the others report none. Raises
    StorageUnavailable when nobody does."""
    roles: dict[str, Role | None] = {}
    silent: dict[str, str] = {}
    for name, server in cluster.servers.items():
        try:
            roles[name] = read_role(MySqlState(server, cluster.meta))
        except CellfeedError as error:
            silent[name] = str(error)
    foreign = of_other_histories(cluster.name, roles)
    silent.update(foreign)
    role = newest(role for name, role in roles.items() if name not in foreign)
    if role is None:
        raise StorageUnavailable(
            f"cluster {cluster.name}: no node reports a master:"
            f" {'; '.join(silent.values()) or 'it was never made (cluster init)'}"
        )
    return role, silent


def master_state(cluster: ClusterServers) -> MySqlState:
    """The state table on the present master, for commits under its role. Raises as
    :func:`cluster_role`."""
    role, _ = cluster_role(cluster)
    return MySqlState(cluster.server(role.master), cluster.meta, role.terms)


def minority(quick: ClusterServers) -> dict[str, str]:
    """The nodes that do not answer, and why. Raises StorageUnavailable when they are not a
    minority."""
    _, silent = cluster_role(quick)
    answering = [name for name in quick.servers if name not in silent]
    if 2 * len(answering) <= len(quick.servers):
        raise StorageUnavailable(
            f"cluster {quick.name}: only {', '.join(answering)} answer; a majority of"
            f" {len(quick.servers)} nodes is needed: {silent}"
        )
    return silent


@contextmanager
def locked_role(cluster: ClusterServers, quick: ClusterServers) -> Iterator[Role]:
    """The role, which no promotion changes meanwhile: a lock on the nodes that answer. ``quick``:
    the same servers with little patience. Raises StorageUnavailable while another holds it."""
    _, silent = cluster_role(quick)
    for server in cluster.servers.values():
        # a fence, by this promotion or one before, cuts connections that were kept
        server.drop_idle()
    with promotion_lock(
        [server for name, server in cluster.servers.items() if name not in silent], cluster.name
    ):
        role, _ = cluster_role(quick)
        yield role


def takes_writes(cluster: ClusterServers, role: Role) -> bool:
    try:
        if why_foreign(cluster, role.master, role):
            return False
        return not is_read_only(cluster.server(role.master))
    except Unavailable:
        return False


def why_foreign(cluster: ClusterServers, name: str, role: Role) -> str:
    """Why the server at the node's address is no node of the cluster; empty where it is one, or
    reports no role. Raises Unavailable."""
    found = role_on(cluster, name)
    return "" if found is None else role.why_foreign(found)


def role_on(cluster: ClusterServers, name: str) -> Role | None:
    """The role that the node has heard of, of whichever cluster and history; None when it reports
    none (a bare server, or half a copy)."""
    server = cluster.servers[name]
    return (
        read_role(MySqlState(server, cluster.meta)) if has_database(server, cluster.meta) else None
    )
