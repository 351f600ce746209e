"""The types of the configuration file: the processes that ``cellfeed up`` starts, and their
listeners.

An unknown key or a wrong value is refused with its path. Every field has a
default, so an empty file (or none) is an embedded store with one HTTP worker and one gateway. Port
0 means a free port, chosen at the first start and kept for restarts within the run directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from cellfeed.bridge.coordination.open import IN_STORE
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.gateway.topics.declared_topics import VirtualTopic
from cellfeed.bridge.typed.declaration import ColumnSchema
from cellfeed.config.gateway import GatewayProcessConfig, Port
from cellfeed.config.http import AuditConfig, IssuerConfig, OidcConfig, TlsConfig
from cellfeed.config.lake import LakeConfig
from cellfeed.config.limits import LimitsConfig
from cellfeed.config.servers import ProcessName, ServerConfig
from cellfeed.config.wakeups import WakeupsConfig
from cellfeed.store.backups.due import Policy
from cellfeed.store.backups.encryption import recipients_of
from cellfeed.store.limits import SHARDS_STORED_MAX
from cellfeed.store.progress import ProgressLimits


class NodeTls(Struct, forbid_unknown_fields=True, frozen=True):
    """TLS to a storage node, which is refused where it offers none or shows another certificate.
    ``ca``: the file of the authorities that may have signed it, the system's own without.
    ``host_name``: whether the certificate must be of the host in ``url``. ``certificate`` and
    ``key``: the files of our own certificate, for a server that asks for one. ``replication_ca``:
    ``ca`` as the nodes themselves have it, where that is another path: they follow their master
    with it."""

    ca: str | None = None
    host_name: bool = True
    replication_ca: str | None = None
    certificate: str | None = None
    key: str | None = None


class NodeConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """A storage node: ``url`` is ``mysql://user:password@host:port``, where the password may stand
    as ``${env:NAME}`` or ``${file:/path}``; ``replication`` is
    ``host:port`` where the other nodes reach it otherwise. ``tls``: see NodeTls."""

    name: ProcessName
    url: str
    replication: str | None = None
    tls: NodeTls | None = None


class ClusterConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """Storage nodes of one cluster, the first being the first master. ``shards``: those it holds
    when it is made (``0-2047``), evenly divided without.

    ``semi_sync``: a commit is acknowledged when a minion has received it. ``failover``: whether the
    operator or the failover process promotes a minion when the master is gone. ``managed``: the one
    node is the endpoint of a service with a replication of its own; you assert that its failover
    loses no commit.
    """

    name: ProcessName
    nodes: Annotated[list[NodeConfig], Meta(min_length=1, max_length=8)]
    shards: str | None = None
    semi_sync: bool = True
    failover: Literal["manual", "automatic"] = "manual"
    managed: bool = False


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
    shards: Annotated[int, Meta(ge=1, le=SHARDS_STORED_MAX)] = 16
    directory: str = "store"
    clusters: list[ClusterConfig] = []
    watermark: Literal["replicated", "committed"] = "replicated"
    log_reads: Literal["master", "minion"] = "master"
    buffer_copies: Annotated[int, Meta(ge=0, le=7)] = 1
    topics: list[VirtualTopic] = []
    schemas: list[ColumnSchema] = []
    dictionaries: Literal["automatic", "manual"] = "automatic"


class WorkerConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """An HTTP worker. ``authentication``: whether every request needs credentials; beyond loopback
    it does, and ``tls`` has to be there. ``advertised``: ``host`` or ``host:port`` where processes
    of other hosts reach it; its commits wake those that follow the logs."""

    name: ProcessName = "worker"
    host: str = "127.0.0.1"
    port: Port = 7420
    tls: TlsConfig | None = None
    authentication: bool | None = None
    advertised: str | None = None


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

    def settings_in(self, run_dir: Path) -> dict[str, Any]:
        """The settings that the program gets: ``{run_dir}`` in a text is the run directory, so that
        one configuration serves wherever it runs."""
        return {
            name: value.replace("{run_dir}", str(run_dir)) if isinstance(value, str) else value
            for name, value in self.settings.items()
        }


class IndexWorkersConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """Index workers: they build and keep every index that was made with ``cellfeed index create``;
    ``processes`` divide the shards."""

    name: ProcessName = "index"
    processes: Annotated[int, Meta(ge=1, le=64)] = 1
    lease_s: Annotated[float, Meta(ge=0.2, le=300)] = 10.0


class WarehouseConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """A warehouse loader: a Kafka consumer that writes Parquet. ``bootstrap`` defaults to the first
    gateway, ``topic`` to the datastore's full topic. ``client``: further settings of the Kafka
    client (security); a secret may stand as ``${env:NAME}`` or ``${file:/path}``."""

    name: ProcessName = "warehouse"
    directory: str = "warehouse"
    bootstrap: str | None = None
    client: dict[str, str | int | float | bool] = {}
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
    without. ``binlogs``: the binlogs of the clusters' masters are archived there between two
    backups."""

    directory: str
    name: ProcessName = "backups"
    every_s: Annotated[float, Meta(ge=1)] = 300.0
    full_every_s: Annotated[float, Meta(ge=1)] = 86_400.0
    keep_days: Annotated[float, Meta(gt=0)] | None = None
    cells_per_s: Annotated[float, Meta(gt=0)] | None = None
    recipients: list[str] = []
    binlogs: bool = False

    def policy(self) -> Policy:
        """As the schedule takes it."""
        return Policy(
            self.every_s,
            self.full_every_s,
            self.keep_days,
            self.cells_per_s,
            recipients_of(self.recipients, ()),
        )


class ConsoleConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """A console in the browser. ``authentication``: whether it asks for a log-in; beyond loopback
    it does, and ``tls`` has to be there. ``oidc``: an identity provider for the log-in, beside
    tokens and passwords."""

    name: ProcessName = "console"
    host: str = "127.0.0.1"
    port: Port = 7480
    tls: TlsConfig | None = None
    authentication: bool | None = None
    oidc: OidcConfig | None = None


class ChecksConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """The check for damage that the workers run beside their work: every cell of every file or
    node, by its checksum and by its key. ``every_s``: seconds from the beginning of one pass to
    that of the next one; ``cells_per_s``: no faster than that. A body counts as one cell for each
    512 bytes."""

    every_s: Annotated[float, Meta(ge=1)] = 86_400.0
    cells_per_s: Annotated[float, Meta(gt=0)] = 2_000.0


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
    lakes: list[LakeConfig] = []
    """Iceberg and Delta tables of the cells."""
    backups: list[BackupsConfig] = []
    consoles: list[ConsoleConfig] = []
    checks: ChecksConfig | None = ChecksConfig()
    """None (``null``): the workers look for no damage by themselves."""
    issuers: list[IssuerConfig] = []
    """Identity providers whose signed tokens the HTTP listeners take."""
    audit: AuditConfig | None = None
    """None: no audit log is kept."""
    coordination: str = IN_STORE
    """Where groups meet and offsets are kept: ``store``, or
    ``zookeeper://[user:password@]host:port,host:port/chroot``."""
    limits: LimitsConfig = LimitsConfig()
    """Of the peers of workers and gateways."""
    wakeups: WakeupsConfig | None = None
    """None: commits on other hosts are found by polling."""
    readiness: ProgressLimits = ProgressLimits()
    """When a process whose parts do not advance is not ready (``/readyz``)."""
    restart: bool = False
    """Whether ``cellfeed up`` starts a process again that has died."""


def server_kind(server: ServerConfig) -> str:
    """``mariadb``, ``zookeeper`` or ``kafka``."""
    return str(server.__struct_config__.tag)
