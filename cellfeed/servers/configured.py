"""Local servers as the configuration names them: which files and accounts they get, and which
clusters are made of them alone."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cellfeed.config.checks import nodes_at
from cellfeed.config.model import Config
from cellfeed.config.servers import KafkaServerConfig, MariaDbServerConfig, ZooKeeperServerConfig
from cellfeed.run_dir import RunDir
from cellfeed.servers.kafka import KafkaServer
from cellfeed.servers.life import LocalServer
from cellfeed.servers.mariadb import Account, MariaDbServer
from cellfeed.servers.memory import memory_bytes, pool_bytes
from cellfeed.servers.zookeeper import ZooKeeperServer
from cellfeed.store.engines.mysql.address import parse_mysql_url
from cellfeed.store.errors import NotFound

SERVER_KINDS: Final = frozenset({"mariadb", "zookeeper", "kafka"})
SHIPPED_SETTINGS: Final = Path(__file__).parents[1] / "data"


def configured_server(directory: RunDir, config: Config, name: str) -> LocalServer:
    """The server of that name. Raises NotFound."""
    for server in config.servers:
        if server.name != name:
            continue
        folder = directory.inside(server.directory or f"servers/{name}")
        match server:
            case MariaDbServerConfig():
                addresses = [
                    parse_mysql_url(node.url, node.replication) for node in nodes_at(config, server)
                ]
                accounts = tuple(Account(address.user, address.password) for address in addresses)
                return MariaDbServer(
                    name,
                    folder,
                    server.port,
                    server.server_id,
                    _settings(directory, server.settings, "mariadb.cnf"),
                    accounts,
                    () if server.settings else (_pool_option(config),),
                )
            case ZooKeeperServerConfig():
                return ZooKeeperServer(
                    name,
                    folder,
                    server.port,
                    _settings(directory, server.settings, "zookeeper.cfg"),
                )
            case KafkaServerConfig():
                return KafkaServer(
                    name,
                    folder,
                    server.port,
                    server.controller_port,
                    _settings(directory, server.settings, "kafka.properties"),
                )
    raise NotFound(
        f"the configuration has no server {name!r}; it has"
        f" {', '.join(server.name for server in config.servers) or 'none'}"
    )


def own_clusters(config: Config) -> list[str]:
    """The clusters whose nodes are all servers of the instance."""
    local = {
        node.name
        for server in config.servers
        if isinstance(server, MariaDbServerConfig)
        for node in nodes_at(config, server)
    }
    return [
        cluster.name
        for cluster in config.datastore.clusters
        if local.issuperset(node.name for node in cluster.nodes)
    ]


def _pool_option(config: Config) -> str:
    servers = sum(isinstance(server, MariaDbServerConfig) for server in config.servers)
    return f"--innodb-buffer-pool-size={pool_bytes(servers, memory_bytes())}"


def _settings(directory: RunDir, given: str | None, shipped: str) -> Path:
    return SHIPPED_SETTINGS / shipped if given is None else directory.inside(given)
