"""``cluster migrate``: the tables of a cluster are brought to the schema version of this program, on its master; the minions follow by replication.

A kill on the way leaves a step to be run again (:mod:`store.engines.mysql_migrations`). Programs of the older version go on until they are started anew, so a
step only ever adds what they do not know.
"""

from __future__ import annotations

from dataclasses import dataclass

from store.clusters.failover import cluster_role
from store.clusters.storage import ClusterServers
from store.engines.mysql_checks import ServerRole, check_server, refuse
from store.engines.mysql_migrations import SCHEMA_VERSION, Layout, Step, migrate


@dataclass(frozen=True)
class Migrated:
    """What ``migrate_cluster`` came to. ``steps``: those that were left to do, now done."""

    master: str
    version: int
    steps: list[Step]


def migrate_cluster(cluster: ClusterServers) -> Migrated:
    """Raises ProtectData for tables that are not this datastore's, or newer, or a master that takes no writes; StorageUnavailable when it does not answer."""
    role, _ = cluster_role(cluster)
    master = cluster.server(role.master)
    with master.connection() as connection:
        refuse(master, check_server(connection, ServerRole.MASTER))
    return Migrated(role.master, SCHEMA_VERSION, migrate(master, Layout(cluster.datastore, cluster.shards), terms=role.terms))
