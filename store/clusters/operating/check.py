"""Looks at every node of a cluster: whether it belongs to the cluster's history and follows its
master, and whether its tables are in good order."""

from __future__ import annotations

from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.engines.contract.findings import Findings, OnCells
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.integrity import check_node, ids_of
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.migrations import check_schema
from cellfeed.store.errors import CellfeedError, ProtectData


def nodes_to_check(cluster: ClusterServers, into: Findings) -> list[tuple[str, MySqlServer]]:
    """The nodes that belong to the cluster, each with the name of its place. One that does not
    answer, or is no part of the cluster, is a finding."""
    try:
        role, silent = cluster_role(cluster)
    except CellfeedError as error:
        into.add("unread", cluster.name, str(error))
        return []
    found = []
    for node, server in cluster.servers.items():
        place = f"{cluster.name}/{node}"
        if node in silent:
            into.add("identity" if "history" in silent[node] else "unread", place, silent[node])
        elif node not in (role.master, *role.minions):
            into.add(
                "unread",
                place,
                f"it is neither the master, {role.master}, nor one of its minions: cellfeed cluster"
                f" rejoin {cluster.name} {node}",
            )
        else:
            found.append((place, server))
    return found


def check_cluster(
    cluster: ClusterServers, into: Findings, on_cells: OnCells = lambda _: None
) -> None:
    """Adds every fault to ``into``."""
    layout = Layout(cluster.datastore, cluster.shards)
    for place, server in nodes_to_check(cluster, into):
        try:
            check_schema(server, layout)
            check_node(place, server, layout, into, on_cells)
        except ProtectData as error:
            into.add("identity", place, str(error))
        except CellfeedError as error:
            into.add("unread", place, str(error))


def cells_of(cluster: ClusterServers) -> int:
    """How many cells a check of the cluster looks at, about: those of every node that answers."""
    layout, found = Layout(cluster.datastore, cluster.shards), 0
    for server in cluster.servers.values():
        try:
            found += ids_of(server, layout)
        except CellfeedError:
            continue
    return found
