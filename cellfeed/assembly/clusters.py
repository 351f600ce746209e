"""The clusters of MariaDB servers that a configuration names: opened, made, and described."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import Any

from cellfeed.config.addresses import node_address
from cellfeed.config.model import ClusterConfig, Config, DatastoreConfig, NodeConfig
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import ShardMap, even_map, first_map, merged, read_map
from cellfeed.store.clusters.operating.create import Initialised, init_cluster
from cellfeed.store.clusters.operating.migrate import identify
from cellfeed.store.clusters.operating.present_role import master_state
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.clusters.serving.shown_heads import Watermark
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import Replica
from cellfeed.store.engines.mysql.address import MySqlAddress
from cellfeed.store.engines.mysql.connections import MySqlServer, has_database
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.errors import InvalidRequest, NotFound, ProtectData, StorageUnavailable


def open_clusters(config: DatastoreConfig) -> ClusteredEngine:
    """The engine over the clusters of the configuration."""
    nodes = {
        cluster.name: {
            node.name: partial(_open_node, config, address) for node, address in _addresses(cluster)
        }
        for cluster in config.clusters
    }
    return ClusteredEngine(
        config.name,
        config.shards,
        nodes,
        watermark=Watermark(config.watermark),
        read_first=Replica(config.log_reads),
        copies=config.buffer_copies,
        servers={cluster.name: _servers(config, cluster) for cluster in config.clusters},
    )


def cluster_servers(config: Config, name: str) -> ClusterServers:
    """A cluster's servers, for its operator. Raises NotFound for a name that the configuration does
    not have."""
    for cluster in config.datastore.clusters:
        if cluster.name == name:
            return _servers(config.datastore, cluster)
    raise NotFound(
        f"the configuration has no cluster {name!r}; it has"
        f" {', '.join(each.name for each in config.datastore.clusters) or 'none'}"
    )


def shard_map(config: Config) -> ShardMap:
    """The shard map for making the clusters: as given per cluster, or divided evenly. Raises
    InvalidRequest."""
    clusters = config.datastore.clusters
    given = [cluster for cluster in clusters if cluster.shards is not None]
    if not given:
        return even_map(
            config.datastore.name, config.datastore.shards, [cluster.name for cluster in clusters]
        )
    if len(given) != len(clusters):
        raise InvalidRequest("config: either every cluster names its shards, or none does")
    made = first_map(
        config.datastore.name,
        config.datastore.shards,
        {cluster.name: _ranges(cluster.shards or "") for cluster in clusters},
    )
    made.by_shard()
    return made


def init_clusters(config: Config, names: Sequence[str]) -> Iterator[Initialised]:
    """Makes these clusters of their bare servers, one after the other; one that has been made is
    left as it is. Raises as :func:`init_cluster`."""
    if not names:
        return
    present = _present_map(config)
    if present is not None and _is_bare(config, config.datastore.clusters[0].name):
        raise ProtectData(
            f"config: cluster {config.datastore.clusters[0].name!r} is new and comes first; the"
            " first cluster keeps leases, offsets and all other state, so a new one is added at"
            " the end of datastore.clusters"
        )
    divided = present or shard_map(config)
    for name in names:
        servers = cluster_servers(config, name)
        try:
            yield init_cluster(servers, divided, known=present is not None)
        finally:
            servers.close()


def identify_clusters(config: Config) -> str:
    """Gives the datastore's clusters a history identity where they have none yet, and returns it.
    Raises as :func:`cellfeed.store.clusters.operating.migrate.identify`."""
    with ExitStack() as opened:
        servers = [cluster_servers(config, cluster.name) for cluster in config.datastore.clusters]
        for each in servers:
            opened.callback(each.close)
        return identify(servers)


def engine_of(datastore: Datastore) -> ClusteredEngine:
    """The clusters below a datastore. Raises InvalidRequest for an embedded one."""
    if not isinstance(datastore.engine, ClusteredEngine):
        raise InvalidRequest("an embedded datastore has no clusters")
    return datastore.engine


def clusters_status(datastore: Datastore) -> list[dict[str, Any]]:
    """Every cluster's status (:class:`~cellfeed.store.clusters.serving.status.ClusterStatus`), and
    the cells it buffers for others; empty for an embedded datastore."""
    if not isinstance(datastore.engine, ClusteredEngine):
        return []
    counts = datastore.engine.drain.counts()
    found = []
    for each in datastore.engine.status():
        buffered = counts[each.name]
        printed = asdict(each)
        printed["buffered"] = (
            [] if isinstance(buffered, str) else [asdict(line) for line in buffered]
        )
        printed["error"] = each.error or (buffered if isinstance(buffered, str) else None)
        found.append(printed)
    return found


def _is_bare(config: Config, name: str) -> bool:
    """Whether all servers of the cluster answer, and none holds anything of the datastore."""
    servers = cluster_servers(config, name)
    try:
        return not any(has_database(server, servers.meta) for server in servers.servers.values())
    except StorageUnavailable:
        return False
    finally:
        servers.close()


def _present_map(config: Config) -> ShardMap | None:
    """The map of clusters that were made before: one that is made now joins them without a shard,
    until some are moved to it."""
    found = []
    for cluster in config.datastore.clusters:
        servers = cluster_servers(config, cluster.name)
        try:
            shard_map = read_map(master_state(servers))
        except StorageUnavailable:
            continue  # not made yet, or away: of those that were made one is enough
        finally:
            servers.close()
        if shard_map is not None:
            found.append(shard_map)
    return merged(found) if found else None


def _ranges(text: str) -> list[tuple[int, int]]:
    found = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not text.isascii() or not first.isdigit() or not (last or first).isdigit():
            raise InvalidRequest(f"config: shards {text!r} is not of the form 0-2047,3000")
        found.append((int(first), int(last or first)))
    return found


def _servers(config: DatastoreConfig, cluster: ClusterConfig) -> ClusterServers:
    nodes = {node.name: MySqlServer(address) for node, address in _addresses(cluster)}
    return ClusterServers(
        cluster.name, config.name, config.shards, nodes, semi_sync=cluster.semi_sync
    )


def _addresses(cluster: ClusterConfig) -> list[tuple[NodeConfig, MySqlAddress]]:
    return [(node, node_address(node, managed=cluster.managed)) for node in cluster.nodes]


def _open_node(config: DatastoreConfig, address: MySqlAddress, timeout_s: float) -> MySqlEngine:
    return MySqlEngine(MySqlServer(address, timeout_s), config.name, config.shards)
