"""Clusters of real MariaDB servers for tests: a master and two minions, started from copies of one
prepared data directory."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID, uuid5

import pytest

from cellfeed.store.cells.cell import NewCell, new_cell
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import ShardMap, even_map
from cellfeed.store.clusters.operating.create import init_cluster
from cellfeed.store.clusters.serving.node_engine import OpenNode
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from tests.support import local_mariadb
from tests.support.local_mariadb import MariaDB

DATASTORE = "trips"
SHARDS = 4
BUSY_FENCE_MAX_S = 4.0
"""The time that tests allow the fence of a move: a busy machine takes longer for it than an
operator's servers may."""

LONE_CLUSTER: Final = "c1"
LONE_NODE: Final = "a"
"""A cluster of one server: :func:`lone_server`."""

_NAMESPACE: Final = UUID("5d1c3e0e-55a4-4b5e-9a55-7b7d2f1f0a29")


@dataclass
class TestCluster:
    """Three servers, made a cluster. ``servers``: by node name."""

    __test__ = False
    name: str
    servers: dict[str, MariaDB]
    admin: ClusterServers

    def openers(self) -> dict[str, OpenNode]:
        """How each node is opened, for a
        :class:`cellfeed.store.clusters.serving.engine.ClusteredEngine`."""
        return {name: node_opener(server.url) for name, server in self.servers.items()}

    def bare(self) -> None:
        """Back to servers that hold nothing and follow nobody, all running."""
        for server in self.servers.values():
            server.resume()
            if not server.is_running():
                server.start()
        for server in self.servers.values():
            server.sql(
                "STOP SLAVE",
                "RESET SLAVE ALL",
                "SET GLOBAL read_only = 0",
                "SET GLOBAL rpl_semi_sync_master_enabled = 0",
            )
            local_mariadb.drop_all_databases(server)
            server.sql("RESET MASTER", "SET GLOBAL gtid_slave_pos = ''")


def configured(cluster: TestCluster, directory: Path, *, semi_sync: bool = True) -> Path:
    """A configuration in the directory that names the cluster."""
    nodes = [{"name": name, "url": server.url} for name, server in cluster.servers.items()]
    clusters = [{"name": cluster.name, "nodes": nodes, "semi_sync": semi_sync}]
    config = directory / "config.yaml"
    datastore = {"name": DATASTORE, "shards": SHARDS, "clusters": clusters}
    config.write_text(json.dumps({"datastore": datastore}))
    return config


def node_opener(url: str, shards: int = SHARDS) -> OpenNode:
    return lambda timeout_s: MySqlEngine(MySqlServer(url, timeout_s), DATASTORE, shards)


@contextmanager
def bare_servers(
    count: int,
    options: tuple[str, ...] = (),
    places: Mapping[int, Path] = {},
    first_id: int = 1,
) -> Iterator[list[MariaDB]]:
    """So many servers without any database, started beside each other. Removed, data and all, at
    the end. ``places``:
    where the files of the n-th server are, from 1. ``first_id``: its server id; the others count on
    from it."""
    directory = Path(tempfile.mkdtemp(prefix="cellfeed-mariadb-"))
    directory.chmod(0o755)
    servers: list[MariaDB] = []
    try:
        for number in range(1, count + 1):
            server = local_mariadb.new_server(
                places.get(number, directory) / f"node-{number}",
                first_id + number - 1,
                options,
                sparse=number not in places,
            )
            servers.append(server)
            server.launch()
        for server in servers:
            server.wait_until_it_answers()
        yield servers
    finally:
        for server in servers:
            server.resume()
            server.kill()
        shutil.rmtree(directory)


@contextmanager
def three_servers() -> Iterator[list[MariaDB]]:
    """Three bare servers. Skips the test, with the reason, where none can be had."""
    if reason := local_mariadb.why_not():
        pytest.skip(reason)
    with bare_servers(3) as started:
        yield started


def make_cluster(
    name: str, servers: list[MariaDB], shard_map: ShardMap | None = None, *, semi_sync: bool = True
) -> TestCluster:
    """``cluster init`` over bare servers; nodes are called a, b, c …"""
    named = dict(zip("abcdefgh", servers, strict=False))
    admin = ClusterServers(
        name,
        DATASTORE,
        SHARDS,
        {node: MySqlServer(server.url) for node, server in named.items()},
        semi_sync=semi_sync,
    )
    init_cluster(admin, shard_map or even_map(DATASTORE, SHARDS, [name]))
    return TestCluster(name, named, admin)


@contextmanager
def lone_server(shards: int) -> Iterator[MariaDB]:
    """A server that is a cluster by itself, with all shards: a follower of a store over the
    network needs nothing else. Gone at the end."""
    with bare_servers(1) as [server]:
        admin = ClusterServers(
            LONE_CLUSTER, DATASTORE, shards, {LONE_NODE: MySqlServer(server.url)}, semi_sync=False
        )
        init_cluster(admin, even_map(DATASTORE, shards, [LONE_CLUSTER]))
        admin.close()
        yield server


def cells_of_shard(shard: int, first: int, count: int) -> list[NewCell]:
    """So many cells of a shard; others for another ``first``."""
    found: list[NewCell] = []
    number = first * 10_000
    while len(found) < count:
        row = uuid5(_NAMESPACE, str(number))
        number += 1
        if shard_of(row.bytes, SHARDS) == shard:
            found.append(new_cell(row, "BASE", 1, {"n": number}))
    return found
