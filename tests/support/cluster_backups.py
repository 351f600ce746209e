"""Backups of embedded datastores and of clusters, restored into clusters of real servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cellfeed.bridge.backups.kept_state import belongs, restored
from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.check import read_state
from cellfeed.store.backups.create import create
from cellfeed.store.backups.erasures import recorded_in, to_erase
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.into_clusters import ClusterTarget
from cellfeed.store.backups.register import Register
from cellfeed.store.backups.restore_plan import Plan, plan
from cellfeed.store.backups.taking import Source
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import even_map
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.mysql.connections import MySqlServer
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import DATASTORE, SHARDS, node_opener

NOW_US = 1_800_000_000_000_000


EPOCH = 1_000
"""The number that these restores begin with, as those that continue: others draw theirs."""


def servers_of(servers: list[MariaDB], name: str = "c1", semi_sync: bool = True) -> ClusterServers:
    return ClusterServers(
        name,
        DATASTORE,
        SHARDS,
        {node: MySqlServer(server.url) for node, server in zip("abc", servers, strict=False)},
        semi_sync=semi_sync,
    )


def target_of(*clusters: ClusterServers) -> ClusterTarget:
    return ClusterTarget(
        clusters, even_map(DATASTORE, SHARDS, [cluster.name for cluster in clusters])
    )


@contextmanager
def opened(servers: list[MariaDB]) -> Iterator[Datastore]:
    nodes = {node: node_opener(server.url) for node, server in zip("abc", servers, strict=False)}
    with Datastore(ClusteredEngine(DATASTORE, SHARDS, {"c1": nodes})) as store:
        yield store


def logs(store: Datastore) -> dict[int, list[StoredCell]]:
    """Everything that is shown, shard by shard."""
    heads = store.heads()
    return {
        shard: (
            store.engine.scan(shard, head.log_start, 10_000)
            if head.watermark > head.log_start
            else []
        )
        for shard, head in heads.items()
    }


def ends(store: Datastore) -> dict[int, int]:
    return {shard: head.watermark for shard, head in store.heads().items()}


def all_shown(store: Datastore) -> bool:
    return all(head.watermark == head.next_added_id for head in store.heads().values())


def backed_up(store: Datastore, directory: Path) -> Backup:
    return create(BackupFolder(directory / "backups"), Source(store.engine, belongs))


def planned(
    directory: Path, backup: Backup, new_ids: dict[int, int] | None = None, epoch: int = EPOCH
) -> Plan:
    folder = BackupFolder(directory / "backups")
    chain = folder.chain(backup)
    state = read_state(backup)
    erased = to_erase(
        chain, state, recorded_in(Register(folder.path), backup, folder.later(backup))
    )
    return plan(chain, restored(state, NOW_US), [], new_ids or {}, NOW_US, "a test", erased, epoch)
