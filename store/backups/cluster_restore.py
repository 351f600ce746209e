"""A cluster under restore: its mark, the role that it gets, and its cells as they are read back."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Final

from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.into_mysql import MySqlRestore
from cellfeed.store.backups.restore_plan import Plan
from cellfeed.store.cells.cell import ERASED_COLUMN, StoredCell, Triple
from cellfeed.store.clusters.model.restore_mark import Mark
from cellfeed.store.clusters.model.roles import Role, newest, read_role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import ShardMap
from cellfeed.store.clusters.operating.create import mark_of
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.engines.mysql.connections import MySqlServer, has_database
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.state import MySqlState
from cellfeed.store.errors import ProtectData, Unavailable

_log: Final = logging.getLogger("cellfeed.restore")


def mark_and_role(cluster: ClusterServers) -> tuple[Mark | None, Role | None]:
    """The mark of a restore that a node holds, and the newest role. Raises StorageUnavailable
    when a node does not answer: its content is not known."""
    marks, roles = list[Mark | None](), list[Role | None]()
    for server in cluster.servers.values():
        marks.append(mark_of(cluster, server))
        if has_database(server, cluster.meta) and marks[-1] is None:
            roles.append(read_role(MySqlState(server, cluster.meta)))
    return next((mark for mark in marks if mark is not None), None), newest(roles)


def is_of(mark: Mark, backup: Backup) -> bool:
    """Whether the restore of this very backup was begun."""
    return (mark.backup, mark.sha256) == (backup.name, backup.sha256)


def refuse_other_runs(marks: Sequence[Mark | None], plan: Plan) -> None:
    """``marks``: of all clusters. Raises ProtectData where each was restored already, or another
    run restores the backup in another epoch."""
    if all(mark is not None and mark.done for mark in marks):
        raise ProtectData(
            "nothing restored: every cluster was restored already, and a backup goes into empty"
            " storage only"
        )
    for mark in marks:
        if mark is not None and is_of(mark, plan.backup) and mark.role.epoch != plan.epoch:
            raise ProtectData(
                f"nothing restored: another run has begun to restore backup {mark.backup} in"
                f" leader epoch {mark.role.epoch}, this one would in {plan.epoch}: run it again,"
                " and it continues that one"
            )


def role_under(role: Role | None, epoch: int, history_id: str) -> Role:
    """The role that the cluster gets, in the history that begins. Raises ProtectData where it
    has seen more promotions than the backup."""
    assert role is not None  # noqa: S101 (a cluster that has no mark has a role, or has just been made)
    if role.epoch > epoch:
        raise ProtectData(
            f"cluster {role.cluster} is in leader epoch {role.epoch}, a restore would take it"
            f" to {epoch}: restore into servers that are bare"
        )
    return Role(
        role.cluster,
        role.master,
        epoch,
        role.minions,
        role.semi_sync,
        history_id=history_id,
        first_epoch=epoch,
    )


def check_shards(cluster: ClusterServers, restore: MySqlRestore, shard_map: ShardMap) -> None:
    """Raises ProtectData for a cluster that was made for other shards."""
    if sorted(restore.loaded()) != shard_map.shards_of(cluster.name):
        raise ProtectData(
            f"cluster {cluster.name} was made for other shards than those that it is to hold:"
            " drop its databases on every node, and run it again"
        )


def not_erased(cluster: ClusterServers, row_keys: Sequence[bytes]) -> Sequence[bytes]:
    """The rows whose erasure the cluster's log does not mark; all of them where it does not
    answer."""
    try:
        role, _ = cluster_role(cluster)
        server = MySqlServer(cluster.server(role.master).address)
        with closing(MySqlEngine(server, cluster.datastore, cluster.shards)) as engine:
            entries = engine.get([Triple(row_key, ERASED_COLUMN, 0) for row_key in row_keys])
    except Unavailable as error:
        _log.warning(
            "cluster %s does not say which rows are erased, so all that should be are named: %s",
            cluster.name,
            error,
        )
        return row_keys
    return [row_key for row_key, entry in zip(row_keys, entries, strict=True) if entry is None]


class ClustersReader:
    """:class:`cellfeed.store.backups.restore_target.LogReader` over the masters of clusters."""

    def __init__(self, engines: Mapping[str, MySqlEngine], cluster_of: Sequence[str]) -> None:
        self._engines = engines
        self._cluster_of = cluster_of

    def scan(self, shard: int, location: int, limit: int) -> list[StoredCell]:
        return self._engines[self._cluster_of[shard]].scan(shard, location, limit)
