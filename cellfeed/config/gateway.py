"""A gateway process: its listeners, its topics and its kept blocks."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from cellfeed.bridge.events.compression import CompressionName
from cellfeed.bridge.events.named_formats import FormatName
from cellfeed.bridge.gateway.limits import BLOCKS_BYTES_MAX
from cellfeed.bridge.gateway.security.listeners import Listener
from cellfeed.config.http import RegistryConfig
from cellfeed.config.servers import ProcessName

Port = Annotated[int, Meta(ge=0, le=65_535)]


class GatewayListenerConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """Where a gateway listens for Kafka clients. ``advertised``: the ``host:port`` that clients of
    this listener get, where it differs from the bound address. ``certificate`` and ``key``: PEM
    files for tls and sasl_tls; ``client_ca``: clients need a certificate of it. ``mechanisms``: of
    SASL. Beyond loopback only sasl_tls, or tls with client_ca."""

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
    """Room of a gateway for encoded blocks of the log, bytes: ``memory_bytes``, and ``disk_bytes``
    in files below ``directory`` (a relative one lies in the run directory); 0: no files."""

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
    and ``advertised_*`` make. ``registry``: TLS and authentication of the schema registry, which
    is on ``host`` and ``registry_port``."""

    name: ProcessName = "gateway"
    host: str = "127.0.0.1"
    port: Port = 9092
    registry_port: Port = 8081
    advertised_host: str | None = None
    advertised_port: Annotated[int, Meta(ge=1, le=65_535)] | None = None
    listeners: list[GatewayListenerConfig] = []
    registry: RegistryConfig = RegistryConfig()
    formats: dict[str, FormatName] = {}
    compression: dict[str, CompressionName] = {}
    blocks: KeptBlocksConfig = KeptBlocksConfig()
    group_initial_delay_s: Annotated[float, Meta(ge=0, le=60)] = 3.0
    session_timeout_s: Annotated[float, Meta(ge=0.5, le=60)] = 4.0
