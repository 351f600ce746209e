"""The configuration file: what ``cellfeed up`` starts, and where everything listens.

YAML, checked strictly: an unknown key or a wrong value is refused with its path. Every field has a
default, so an empty file (or none) is an embedded store with one HTTP worker and one gateway. Port
0 means a free port, chosen at the first start and kept for restarts within the run directory.
"""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta, Struct

from cellfeed.bridge.coordination.open import IN_STORE, check_coordination
from cellfeed.bridge.events.compression import CompressionName
from cellfeed.bridge.events.named_formats import FormatName
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.gateway.limits import BLOCKS_BYTES_MAX
from cellfeed.bridge.gateway.security.listeners import Listener, check_listener
from cellfeed.bridge.gateway.topics.declared_topics import VirtualTopic, check_topics
from cellfeed.bridge.typed.declaration import ColumnSchema, check_schemas
from cellfeed.store.arguments import check_datastore_name
from cellfeed.store.backups.due import INCREMENTS_MAX, Policy
from cellfeed.store.backups.encryption import recipients_of
from cellfeed.store.engines.mysql.connections import parse_mysql_url
from cellfeed.store.errors import InvalidRequest, ProtectData
from cellfeed.store.limits import SHARDS_MAX

Port = Annotated[int, Meta(ge=0, le=65_535)]
ListenPort = Annotated[int, Meta(ge=1, le=65_535)]
ProcessName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,40}$")]


TRIGGERS_PROCESS = "triggers"
"""The process of an entry under ``triggers:`` that has no name."""

EXPORT_PROCESS = "export"
"""The process that runs the exports of an instance."""

DAY_S = 86_400


class MariaDbServerConfig(
    Struct, forbid_unknown_fields=True, frozen=True, tag_field="kind", tag="mariadb"
):
    """A MariaDB server that is a process of the instance: a storage node whose ``url`` names its
    port; user and password are the node's. ``directory`` is ``servers/NAME`` of the run directory
    without; ``settings``: a file of MariaDB's own form instead of the shipped one."""

    name: ProcessName
    port: ListenPort
    server_id: Annotated[int, Meta(ge=1, le=4_294_967_295)]
    directory: str | None = None
    settings: str | None = None


class ZooKeeperServerConfig(
    Struct, forbid_unknown_fields=True, frozen=True, tag_field="kind", tag="zookeeper"
):
    """A ZooKeeper server of one node that is a process of the instance. ``directory`` and
    ``settings`` as for MariaDB."""

    name: ProcessName = "zookeeper"
    port: ListenPort = 2181
    directory: str | None = None
    settings: str | None = None


class KafkaServerConfig(
    Struct, forbid_unknown_fields=True, frozen=True, tag_field="kind", tag="kafka"
):
    """A Kafka broker of one node (KRaft) that is a process of the instance. ``directory`` and
    ``settings`` as for MariaDB."""

    name: ProcessName = "kafka"
    port: ListenPort = 9094
    controller_port: ListenPort = 9095
    directory: str | None = None
    settings: str | None = None


ServerConfig = MariaDbServerConfig | ZooKeeperServerConfig | KafkaServerConfig


class NodeConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """A storage node: ``url`` is ``mysql://user:password@host:port``; ``replication`` is
    ``host:port`` where the other nodes reach it otherwise."""

    name: ProcessName
    url: str
    replication: str | None = None


class ClusterConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """Storage nodes of one cluster, the first being the first master. ``shards``: those it holds
    when it is made (``0-2047``), evenly divided without.

    ``semi_sync``: a commit is acknowledged when a minion has received it. ``failover``: who
    promotes a minion when the master is gone.
    """

    name: ProcessName
    nodes: Annotated[list[NodeConfig], Meta(min_length=1, max_length=8)]
    shards: str | None = None
    semi_sync: bool = True
    failover: Literal["manual", "automatic"] = "manual"


class DatastoreConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """``directory`` holds the SQLite files; a relative one lies in the run directory. ``shards`` is
    fixed when the datastore is made. With ``clusters`` the cells are in MariaDB. ``watermark`` says
    which nodes must have a cell before readers see it; ``log_reads`` where logs are read first;
    ``buffer_copies`` on how many other clusters a put is buffered. ``dictionaries``: ``automatic``
    trains one for each column from the first cells that workers write; ``manual`` leaves it to
    ``cellfeed dictionary train``. Either way those that are there are used. ``topics``: views of
    the log that its gateways show as topics of their own. ``schemas``: Avro schemas of columns,
    whose bodies gateways and exports show typed."""

    name: str = "trips"
    shards: Annotated[int, Meta(ge=1, le=SHARDS_MAX)] = 16
    directory: str = "store"
    clusters: list[ClusterConfig] = []
    watermark: Literal["replicated", "committed"] = "replicated"
    log_reads: Literal["master", "minion"] = "master"
    buffer_copies: Annotated[int, Meta(ge=0, le=7)] = 1
    topics: list[VirtualTopic] = []
    schemas: list[ColumnSchema] = []
    dictionaries: Literal["automatic", "manual"] = "automatic"


class WorkerConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """An HTTP worker."""

    name: ProcessName = "worker"
    host: str = "127.0.0.1"
    port: Port = 7420


class GatewayListenerConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """Where a gateway listens for Kafka clients. ``advertised``: the ``host:port`` that clients of
    this listener get, where it is not what is bound. ``certificate`` and ``key``: PEM files for tls
    and sasl_tls; ``client_ca``: clients need a certificate of it. ``mechanisms``: of SASL. Beyond
    loopback only sasl_tls, or tls with client_ca."""

    name: ProcessName
    bind: str = "127.0.0.1"
    port: Port = 9092
    advertised: Annotated[str, Meta(pattern=r"^.+:[0-9]{1,5}$")] | None = None
    security: Literal["plaintext", "tls", "sasl_plaintext", "sasl_tls"] = "plaintext"
    certificate: str | None = None
    key: str | None = None
    client_ca: str | None = None
    mechanisms: list[Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]] = msgspec.field(
        default_factory=lambda: ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    )

    def listener(self) -> Listener:
        """As the gateway takes it."""
        host, _, port = (self.advertised or "").rpartition(":")
        files = (self.certificate, self.key, self.client_ca)
        return Listener(
            self.name,
            self.bind,
            self.port,
            (host, int(port)) if host else None,
            self.security,
            *files,
            tuple(self.mechanisms),
        )


class KeptBlocksConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """What a gateway may take for encoded blocks of the log, bytes: ``memory_bytes``, and
    ``disk_bytes`` in files below ``directory`` (a relative one lies in the run directory); 0: no
    files."""

    memory_bytes: Annotated[int, Meta(ge=1 << 20)] = BLOCKS_BYTES_MAX
    directory: str = "blocks"
    disk_bytes: Annotated[int, Meta(ge=0)] = 0


class GatewayProcessConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """A Kafka gateway with its schema registry; several of one datastore are one Kafka cluster, on
    any hosts, each with a name of its own. ``formats``: topic (or ``*``) to ``avro``, ``json`` or
    ``cloudevents``; ``compression``: likewise to ``none``, ``gzip``, ``snappy``, ``lz4`` or
    ``zstd``. ``group_initial_delay_s``: see Kafka's ``group.initial.rebalance.delay.ms``.
    ``session_timeout_s``: how long a gateway may give no sign of life before others coordinate its
    groups. ``listeners``: instead of the one without TLS and authentication that ``host``, ``port``
    and ``advertised_*`` make; the schema registry is on ``host``."""

    name: ProcessName = "gateway"
    host: str = "127.0.0.1"
    port: Port = 9092
    registry_port: Port = 8081
    advertised_host: str | None = None
    advertised_port: Annotated[int, Meta(ge=1, le=65_535)] | None = None
    listeners: list[GatewayListenerConfig] = []
    formats: dict[str, FormatName] = {}
    compression: dict[str, CompressionName] = {}
    blocks: KeptBlocksConfig = KeptBlocksConfig()
    group_initial_delay_s: Annotated[float, Meta(ge=0, le=60)] = 3.0
    session_timeout_s: Annotated[float, Meta(ge=0.5, le=60)] = 4.0


class TriggersConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """Trigger workers: ``app`` is ``module:name`` or a file, ``settings`` go to it (``{run_dir}``
    in a text is the run directory), ``processes`` divide the shards. ``name`` is the group of a
    trigger whose code names none; an entry alone may do without where the code does."""

    app: str
    name: ProcessName | None = None
    processes: Annotated[int, Meta(ge=1, le=64)] = 1
    threads: Annotated[int, Meta(ge=1, le=256)] = 8
    lease_s: Annotated[float, Meta(ge=0.2, le=300)] = 10.0
    settings: dict[str, Any] = {}


class IndexWorkersConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """Index workers: they build and keep every index that was made with ``cellfeed index create``;
    ``processes`` divide the shards."""

    name: ProcessName = "index"
    processes: Annotated[int, Meta(ge=1, le=64)] = 1
    lease_s: Annotated[float, Meta(ge=0.2, le=300)] = 10.0


class WarehouseConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """A warehouse loader: a Kafka consumer that writes Parquet. ``bootstrap`` defaults to the first
    gateway, ``topic`` to the datastore's full topic."""

    name: ProcessName = "warehouse"
    directory: str = "warehouse"
    bootstrap: str | None = None
    topic: str | None = None
    group: str = "warehouse"
    flush_rows: Annotated[int, Meta(ge=1)] = 100_000
    flush_age_s: Annotated[float, Meta(gt=0)] = 5.0


class BackupsConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """A process that backs the datastore up on a schedule. ``directory``: the folder of backups; a
    relative one lies in the run directory; or `s3://bucket/prefix`. ``every_s``: seconds from the
    beginning of one backup to that of the next one. That is an increment; or a full one, when the
    last full one began ``full_every_s`` ago. ``keep_days``: the declared time, after which backups
    are removed with all that they stand on; all stay without. ``cells_per_s``: no faster than that.
    ``recipients``: the age recipients (age1…) that backups are encrypted to; they are plain
    without."""

    directory: str
    name: ProcessName = "backups"
    every_s: Annotated[float, Meta(ge=1)] = 300.0
    full_every_s: Annotated[float, Meta(ge=1)] = 86_400.0
    keep_days: Annotated[float, Meta(gt=0)] | None = None
    cells_per_s: Annotated[float, Meta(gt=0)] | None = None
    recipients: list[str] = []

    def policy(self) -> Policy:
        """As the schedule takes it."""
        return Policy(
            self.every_s,
            self.full_every_s,
            self.keep_days,
            self.cells_per_s,
            recipients_of(self.recipients, ()),
        )


class Config(Struct, forbid_unknown_fields=True, frozen=True):
    """The whole file. ``servers`` are started before, and ended after everything else."""

    servers: list[ServerConfig] = []
    datastore: DatastoreConfig = DatastoreConfig()
    workers: list[WorkerConfig] = msgspec.field(default_factory=lambda: [WorkerConfig()])
    gateways: list[GatewayProcessConfig] = msgspec.field(
        default_factory=lambda: [GatewayProcessConfig()]
    )
    triggers: list[TriggersConfig] = []
    indexes: list[IndexWorkersConfig] = []
    exports: list[Export] = []
    """Copies of the log in Kafka clusters; one process named ``export`` runs all of them."""
    warehouses: list[WarehouseConfig] = []
    backups: list[BackupsConfig] = []
    coordination: str = IN_STORE
    """Where groups meet and offsets are kept: ``store``, or
    ``zookeeper://[user:password@]host:port,host:port/chroot``."""
    restart: bool = False
    """Whether ``cellfeed up`` starts a process again that has died."""


def load_config(path: Path | None) -> Config:
    """The configuration of a file, or the defaults. Raises InvalidRequest (what, where),
    ProtectData for an address beyond loopback."""
    if path is None:
        return check_config(Config())
    try:
        raw = yaml.safe_load(path.read_bytes())
        return check_config(msgspec.convert({} if raw is None else raw, Config))
    except OSError as error:
        raise InvalidRequest(f"config file {path}: {error.strerror}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidRequest(
            f"config file {path} is not YAML: {' '.join(str(error).split())}"
        ) from error
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"config file {path}: {error}") from error


def check_config(config: Config) -> Config:
    """What no type says: names are unique, hosts are loopback."""
    check_datastore_name(config.datastore.name)
    check_coordination(config.coordination)
    nodes = Counter(node.name for cluster in config.datastore.clusters for node in cluster.nodes)
    clusters = Counter(cluster.name for cluster in config.datastore.clusters)
    if repeated := [name for name, count in (clusters + nodes).items() if count > 1]:
        raise InvalidRequest(
            f"config: the name {repeated[0]!r} is given twice among clusters and nodes"
        )
    for cluster in config.datastore.clusters:
        for node in cluster.nodes:
            try:
                parse_mysql_url(node.url, node.replication)
            except InvalidRequest as error:
                raise InvalidRequest(f"config: node {node.name}: {error}") from None
    _check_servers(config)
    if len(config.triggers) > 1 and (unnamed := [e.app for e in config.triggers if not e.name]):
        raise InvalidRequest(
            f"config: triggers: {unnamed[0]} has no name: of several entries each needs one"
        )
    counts = Counter(name for name, _ in process_names(config))
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise InvalidRequest(f"config: the process name {repeated[0]!r} is given twice")
    if repeated := [
        name
        for name, count in Counter(export.name for export in config.exports).items()
        if count > 1
    ]:
        raise InvalidRequest(f"config: the export name {repeated[0]!r} is given twice")
    for export in config.exports:
        export.check()
    for worker in config.workers:
        check_loopback(worker.name, worker.host)
    for gateway in config.gateways:
        check_loopback(gateway.name, gateway.host)
        _check_listeners(gateway)
    _check_topics(config)
    _check_backups(config)
    return config


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
        if each.full_every_s > INCREMENTS_MAX * each.every_s:
            raise InvalidRequest(
                f"config: {each.name} takes {each.full_every_s / each.every_s:.0f} increments onto"
                f" one full backup, at most {INCREMENTS_MAX} are possible: raise every_s"
                f" ({each.every_s:g}) or lower full_every_s ({each.full_every_s:g})"
            )
        if each.keep_days is not None and each.full_every_s >= each.keep_days * DAY_S:
            raise InvalidRequest(
                f"config: {each.name} keeps backups for {each.keep_days:g} days, and takes a full"
                f" one every {each.full_every_s / DAY_S:g}: a full one goes only when a newer one"
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
        try:
            check_listener(each.listener())
        except (InvalidRequest, ProtectData) as error:
            raise type(error)(f"config: {gateway.name}: {error}") from None


def process_names(config: Config) -> list[tuple[str, str]]:
    """``(name, kind)`` of every process that the configuration names, in the order in which they
    start."""
    names = [(server.name, server_kind(server)) for server in config.servers]
    names += [(worker.name, "worker") for worker in config.workers]
    names += [(gateway.name, "gateway") for gateway in config.gateways]
    for each in config.triggers:
        names += [(name, "triggers") for name in trigger_process_names(each)]
    for workers in config.indexes:
        names += [(name, "index") for name in trigger_process_names(workers)]
    if config.exports:
        names.append((EXPORT_PROCESS, "export"))
    names += [(warehouse.name, "warehouse") for warehouse in config.warehouses]
    names += [(backups.name, "backups") for backups in config.backups]
    if any(cluster.failover == "automatic" for cluster in config.datastore.clusters):
        names.append(("failover", "failover"))
    return names


def server_kind(server: ServerConfig) -> str:
    """``mariadb``, ``zookeeper`` or ``kafka``."""
    return str(server.__struct_config__.tag)


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


def trigger_process_names(config: TriggersConfig | IndexWorkersConfig) -> list[str]:
    """``triggers``, or ``triggers-1`` … where there are several."""
    name = config.name or TRIGGERS_PROCESS
    return (
        [name]
        if config.processes == 1
        else [f"{name}-{number}" for number in range(1, config.processes + 1)]
    )


def check_loopback(name: str, host: str) -> None:
    """Raises ProtectData unless ``host`` is this machine's loopback."""
    if not is_loopback(host):
        raise ProtectData(
            f"{name}: host {host!r} is not loopback; without TLS and authentication nothing listens"
            " wider"
        )


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine's loopback, told without asking a name server."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


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


def write_config(config: Config, path: Path) -> None:
    """Writes the configuration in force, defaults included."""
    path.touch(mode=0o600)  # it may hold passwords
    path.write_text(yaml.safe_dump(msgspec.to_builtins(config), sort_keys=False))
