"""``cluster migrate``: the tables of a cluster are brought to the schema version of this program,
on its master; the minions follow by replication.

A kill on the way leaves a step to be run again (:mod:`cellfeed.store.engines.mysql.migrations`).
Programs of the older version continue until they are restarted, so a step only ever adds parts that
they do not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from cellfeed.store.clusters.model.roles import change_role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import merged, read_map, write_map
from cellfeed.store.clusters.operating.present_role import cluster_role, master_state
from cellfeed.store.engines.mysql.checks import check_server, refuse
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.migrations import migrate
from cellfeed.store.engines.mysql.schema_steps import SCHEMA_VERSION, Step
from cellfeed.store.engines.mysql.server_rules import ServerRole
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.histories import new_history, refuse_other_history

declare("cluster.identify.after_map")


@dataclass(frozen=True)
class Migrated:
    """The result of ``migrate_cluster``. ``steps``: those that were left to do, now done."""

    master: str
    version: int
    steps: list[Step]


def migrate_cluster(cluster: ClusterServers) -> Migrated:
    """Raises ProtectData for tables that are not this datastore's, or newer, or a master that takes
    no writes; StorageUnavailable when it does not answer."""
    role, _ = cluster_role(cluster)
    master = cluster.server(role.master)
    with master.connection() as connection:
        refuse(master, check_server(connection, ServerRole.MASTER, managed=master.address.managed))
    return Migrated(
        role.master,
        SCHEMA_VERSION,
        migrate(master, Layout(cluster.datastore, cluster.shards), terms=role.terms),
    )


def identify(clusters: Sequence[ClusterServers]) -> str:
    """Gives the clusters of a datastore that was made before histories had an identity one, and
    returns it. First all maps have it, then the roles: a run that was killed in between is
    completed by the next one, which finds the id in a map. Raises ProtectData for clusters of two
    histories, StorageUnavailable."""
    maps = {
        cluster.name: found
        for cluster in clusters
        if (found := read_map(master_state(cluster))) is not None
    }
    known = merged(list(maps.values()))
    known = known if known.history_id else known.of_history(new_history())
    for cluster in clusters:
        write_map({cluster.name: master_state(cluster)}, known)
        failpoint("cluster.identify.after_map")
    for cluster in clusters:
        role, _ = cluster_role(cluster)
        refuse_other_history(
            f"cluster {cluster.name}", role.history_id, "the datastore", known.history_id
        )
        if not role.history_id and not change_role(
            master_state(cluster), role, msgspec.structs.replace(role, history_id=known.history_id)
        ):
            raise StorageUnavailable(
                f"cluster {cluster.name}: its role changed meanwhile; run it again"
            )
    return known.history_id
