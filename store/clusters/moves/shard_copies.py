"""The nodes that have cells of a shard, and the kind of each copy: one that is served, one that is
being made, or one that a cluster keeps after the shard has left it. Read only, and without the
shard's lock: a move meanwhile makes an answer that is repeated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pymysql

from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_notes import HIDDEN, Clusters, ShardNotes, shard_notes
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.errors import failed
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import CellfeedError

Kind = Literal["serves", "arriving", "kept"]


@dataclass(frozen=True, slots=True)
class ShardCopy:
    """The cells of a shard on one node. ``ids``: those that it says it has. ``is_master``: of its
    cluster."""

    cluster: str
    node: str
    kind: Kind
    table: str
    ids: range
    is_master: bool
    server: MySqlServer
    meta: str

    def __str__(self) -> str:
        return (
            f"node {self.node} of cluster {self.cluster}"
            + {
                "serves": "",
                "arriving": " (a copy that is being made)",
                "kept": " (the kept copy)",
            }[self.kind]
        )

    def log_start(self, shard: int) -> int:
        """Where the log starts there now; it only rises. Raises StorageUnavailable."""
        sql = " UNION ALL ".join(
            f"SELECT log_start FROM {self.meta}.{name} WHERE shard = {shard}"
            for name in ("shard_counter", "shard_leaving")
        )
        with self.server.connection() as connection:
            return max((int(start) for (start,) in query(connection, sql)), default=0)


def copies_of(clusters: Clusters, shard: int) -> tuple[list[ShardCopy], dict[str, str]]:
    """Every node's copy, and why the other nodes report none. Raises StorageUnavailable when no
    node of a cluster says who is master."""
    found: list[ShardCopy] = []
    silent: dict[str, str] = {}
    for cluster in clusters.values():
        role, away = cluster_role(cluster)
        silent.update({f"{cluster.name}/{node}": why for node, why in away.items()})
        for node in (role.master, *role.minions):
            if node in away:
                continue
            try:
                notes = notes_on(cluster, node, shard)
            except CellfeedError as error:
                silent[f"{cluster.name}/{node}"] = str(error)
                continue
            if (
                copy := copy_on(cluster, node, shard, notes, is_master=node == role.master)
            ) is not None:
                found.append(copy)
    return found, silent


def notes_on(cluster: ClusterServers, node: str, shard: int) -> ShardNotes:
    """The notes of a node on the shard. Raises StorageUnavailable."""
    server = cluster.server(node)
    with server.connection() as connection:
        try:
            return shard_notes(connection, Layout(cluster.datastore, cluster.shards), shard)
        except pymysql.err.MySQLError as error:
            raise failed(server, error) from error


def copy_on(
    cluster: ClusterServers, node: str, shard: int, notes: ShardNotes, *, is_master: bool
) -> ShardCopy | None:
    """The copy that a node has, by its notes on the shard; None where it has none."""
    if notes.serves is not None:
        kind, ids = "serves", range(*notes.serves)
    elif notes.arriving is not None:
        kind, ids = "arriving", range(notes.arriving.next_added_id)
    elif notes.leaving is not None and notes.has_tables:
        kind, ids = "kept", range(notes.leaving.log_start, notes.leaving.next_added_id)
    else:
        return None
    database = Layout(cluster.datastore, cluster.shards).database(shard)
    table = f"{database}.{HIDDEN if notes.hidden else ''}cell"
    return ShardCopy(
        cluster.name,
        node,
        kind,  # type: ignore[arg-type, arg-type]
        table,
        ids,
        is_master,
        cluster.server(node),
        cluster.meta,
    )
