"""Checks of a configuration that its types cannot express."""

from __future__ import annotations

from collections import Counter
from typing import Final

from cellfeed.bridge.coordination.open import check_coordination
from cellfeed.bridge.gateway.security.listeners import check_listener
from cellfeed.bridge.gateway.topics.declared_topics import check_topics
from cellfeed.bridge.typed.declaration import check_layout, check_schemas
from cellfeed.config.addresses import check_cluster
from cellfeed.config.consoles import check_console
from cellfeed.config.gateway import GatewayProcessConfig
from cellfeed.config.http import check_http
from cellfeed.config.model import Config, NodeConfig, WarehouseConfig
from cellfeed.config.servers import KafkaServerConfig, MariaDbServerConfig
from cellfeed.config.wakeups import check_advertised, check_wakeups
from cellfeed.store.arguments import check_datastore_name
from cellfeed.store.backups.due import INCREMENTS_MAX
from cellfeed.store.backups.encryption import recipients_of
from cellfeed.store.engines.mysql.address import parse_mysql_url
from cellfeed.store.errors import InvalidRequest, ProtectData
from cellfeed.store.secret_references import resolved_settings
from cellfeed.store.security.loopback import is_loopback

_DAY_S: Final = 86_400
_PORT_MAX: Final = 65_535


def check_entries(config: Config) -> None:
    """Checks rules that no type expresses: names are unique, hosts are loopback. Raises
    InvalidRequest, ProtectData."""
    check_datastore_name(config.datastore.name)
    check_coordination(config.coordination)
    nodes = Counter(node.name for cluster in config.datastore.clusters for node in cluster.nodes)
    clusters = Counter(cluster.name for cluster in config.datastore.clusters)
    if repeated := [name for name, count in (clusters + nodes).items() if count > 1]:
        raise InvalidRequest(
            f"config: the name {repeated[0]!r} is given twice among clusters and nodes"
        )
    for cluster in config.datastore.clusters:
        check_cluster(cluster, archives_binlogs=any(each.binlogs for each in config.backups))
    _check_servers(config)
    if len(config.triggers) > 1 and (unnamed := [e.app for e in config.triggers if not e.name]):
        raise InvalidRequest(
            f"config: triggers: {unnamed[0]} has no name: of several entries each needs one"
        )
    if repeated := [
        name
        for name, count in Counter(export.name for export in config.exports).items()
        if count > 1
    ]:
        raise InvalidRequest(f"config: the export name {repeated[0]!r} is given twice")
    config.limits.check()
    for export in config.exports:
        export.check()
    for lake in config.lakes:
        lake.check()
    for warehouse in config.warehouses:
        _check_warehouse(warehouse)
    for worker in config.workers:
        check_http(worker.name, worker.host, worker.tls, worker.authentication)
        if (at := worker.advertised) is not None:
            check_advertised(worker.name, at, worker.host, has_tls=worker.tls is not None)
    if config.wakeups is not None:
        check_wakeups(config.wakeups)
    for console in config.consoles:
        check_console(config, console)
    for gateway in config.gateways:
        check_loopback(gateway.name, gateway.host)
        _check_listeners(gateway)
        registry = gateway.registry
        check_http(
            f"{gateway.name}: registry",
            registry.bind or gateway.host,
            registry.tls,
            registry.authentication,
        )
    if repeated := [
        issuer for issuer, n in Counter(each.issuer for each in config.issuers).items() if n > 1
    ]:
        raise InvalidRequest(f"config: the issuer {repeated[0]!r} is given twice")
    _check_topics(config)
    _check_backups(config)


_LOADERS_OWN: Final = frozenset(
    {
        "bootstrap.servers",
        "group.id",
        "group.instance.id",
        "isolation.level",
        "session.timeout.ms",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.partition.eof",
        "auto.offset.reset",
    }
)
"""Settings of the client that the loader's exactly-once rests upon."""


def _check_warehouse(warehouse: WarehouseConfig) -> None:
    if taken := sorted(_LOADERS_OWN & set(warehouse.client)):
        raise InvalidRequest(
            f"config: {warehouse.name}: client: {taken[0]} is the loader's own, exactly-once rests"
            " upon it; take it out"
        )
    try:
        resolved_settings(warehouse.client)
    except InvalidRequest as error:
        raise InvalidRequest(f"config: {warehouse.name}: client: {error}") from None


def _check_topics(config: Config) -> None:
    formats = {topic for gateway in config.gateways for topic in gateway.formats}
    compressions = {topic for gateway in config.gateways for topic in gateway.compression}
    try:
        check_topics(config.datastore.name, config.datastore.topics, formats, compressions)
    except InvalidRequest as error:
        raise InvalidRequest(f"config: datastore.topics: {error}") from None
    try:
        check_schemas(config.datastore.schemas)
    except InvalidRequest as error:
        raise InvalidRequest(f"config: datastore.schemas: {error}") from None
    views = [(f"topic {each.name}", each.column, each.layout) for each in config.datastore.topics]
    views += [(f"export {each.name}", each.column, each.layout) for each in config.exports]
    for schema in config.datastore.schemas:
        for of, column, layout in views:
            if column == schema.column:
                check_layout(f"config: {of}", column, layout, schema.unfit)


def _check_backups(config: Config) -> None:
    folders = Counter(each.directory for each in config.backups)
    if repeated := [folder for folder, count in folders.items() if count > 1]:
        raise InvalidRequest(
            f"config: backups: two processes take backups into {repeated[0]}: one of them is enough"
        )
    for each in config.backups:
        try:
            recipients_of(each.recipients, ())
        except InvalidRequest as error:
            raise InvalidRequest(f"config: {each.name}: recipients: {error}") from None
        if each.binlogs and not config.datastore.clusters:
            raise InvalidRequest(
                f"config: {each.name}: binlogs: an embedded datastore has none, only clusters of"
                " MariaDB servers do: leave it out, and lower every_s"
            )
        if each.full_every_s > INCREMENTS_MAX * each.every_s:
            raise InvalidRequest(
                f"config: {each.name} takes {each.full_every_s / each.every_s:.0f} increments onto"
                f" one full backup, at most {INCREMENTS_MAX} are possible: raise every_s"
                f" ({each.every_s:g}) or lower full_every_s ({each.full_every_s:g})"
            )
        if each.keep_days is not None and each.full_every_s >= each.keep_days * _DAY_S:
            raise InvalidRequest(
                f"config: {each.name} keeps backups for {each.keep_days:g} days, and takes a full"
                f" one every {each.full_every_s / _DAY_S:g}: a full one goes only when a newer one"
                " is there, so lower full_every_s below keep_days"
            )


def _check_listeners(gateway: GatewayProcessConfig) -> None:
    if repeated := [
        name
        for name, count in Counter(each.name for each in gateway.listeners).items()
        if count > 1
    ]:
        raise InvalidRequest(f"config: {gateway.name} has two listeners {repeated[0]!r}")
    if gateway.listeners and (
        gateway.port != 9092 or gateway.advertised_host or gateway.advertised_port
    ):
        raise InvalidRequest(
            f"config: {gateway.name} has listeners: port and advertised_* are said for each of them"
        )
    for each in gateway.listeners:
        if each.advertised and not 1 <= int(each.advertised.rpartition(":")[2]) <= _PORT_MAX:
            raise InvalidRequest(
                f"config: {gateway.name}: listener {each.name!r} advertises {each.advertised}: a"
                f" port is from 1 to {_PORT_MAX}"
            )
        try:
            check_listener(each.listener())
        except (InvalidRequest, ProtectData) as error:
            raise type(error)(f"config: {gateway.name}: {error}") from None


def _check_servers(config: Config) -> None:
    mariadb = [server for server in config.servers if isinstance(server, MariaDbServerConfig)]
    ports = Counter(server.port for server in config.servers)
    ports.update(
        server.controller_port for server in config.servers if isinstance(server, KafkaServerConfig)
    )
    for what, counts in (
        ("port", ports),
        ("server_id", Counter(server.server_id for server in mariadb)),
    ):
        if repeated := [value for value, count in counts.items() if count > 1]:
            raise InvalidRequest(f"config: {what} {repeated[0]} is given to two servers")
    for server in mariadb:
        count = len(nodes_at(config, server))
        if count != 1:
            raise InvalidRequest(
                f"config: server {server.name} on port {server.port}: one storage node of"
                f" datastore.clusters must be there, and {count} are"
            )


def nodes_at(config: Config, server: MariaDbServerConfig) -> list[NodeConfig]:
    """The storage nodes whose address is the server's: one, in a configuration that was checked."""
    addresses = [
        (node, parse_mysql_url(node.url, node.replication))
        for cluster in config.datastore.clusters
        for node in cluster.nodes
    ]
    return [
        node
        for node, address in addresses
        if address.port == server.port and is_loopback(address.host)
    ]


def check_loopback(name: str, host: str) -> None:
    """Raises ProtectData unless ``host`` is this machine's loopback."""
    if not is_loopback(host):
        raise ProtectData(
            f"{name}: host {host!r} is not loopback; without TLS and authentication nothing listens"
            " wider"
        )
