"""The addresses of storage nodes, out of their entries in the configuration."""

from __future__ import annotations

from pathlib import Path

from cellfeed.config.model import ClusterConfig, NodeConfig
from cellfeed.store.engines.mysql.address import MySqlAddress, MySqlTls, parse_mysql_url
from cellfeed.store.errors import InvalidRequest


def node_address(node: NodeConfig, *, managed: bool = False) -> MySqlAddress:
    """Where a node is and how it is reached. Raises InvalidRequest."""
    given = node.tls
    tls = (
        MySqlTls(given.ca, given.certificate, given.key, given.host_name, given.replication_ca)
        if given is not None
        else None
    )
    return parse_mysql_url(node.url, node.replication, tls=tls, managed=managed)


def check_cluster(cluster: ClusterConfig, *, archives_binlogs: bool) -> None:
    """Raises InvalidRequest for an address that is none, for half a certificate, and for settings
    that a managed endpoint leaves to its service."""
    for node in cluster.nodes:
        try:
            node_address(node)
        except InvalidRequest as error:
            raise InvalidRequest(f"config: node {node.name}: {error}") from None
        if node.tls is not None and (node.tls.certificate is None) != (node.tls.key is None):
            raise InvalidRequest(
                f"config: node {node.name}: tls: certificate and key are given together"
            )
        if node.tls is not None and node.tls.ca is None and len(cluster.nodes) > 1:
            raise InvalidRequest(
                f"config: node {node.name}: tls: name the authority in `ca`: MariaDB's own"
                " connections to its master check a certificate by nothing else"
            )
        for file in (node.tls.ca, node.tls.certificate, node.tls.key) if node.tls else ():
            if file is not None and not Path(file).is_absolute():
                raise InvalidRequest(
                    f"config: node {node.name}: tls: {file!r} is not an absolute path: every"
                    " process reads it"
                )
    if not cluster.managed:
        return
    of_the_service = {
        "nodes": len(cluster.nodes) > 1,
        "nodes: replication": any(node.replication for node in cluster.nodes),
        "failover": cluster.failover != "manual",
        "backups: binlogs": archives_binlogs,
    }
    if wrong := [name for name, given in of_the_service.items() if given]:
        raise InvalidRequest(
            f"config: cluster {cluster.name} is managed: one node, the service's endpoint, and"
            f" its service replicates, fails over and keeps the binary log; take away {wrong[0]}"
        )
