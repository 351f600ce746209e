"""A gateway's listeners, and the content of its topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cellfeed.bridge.events.compression import CompressionName
from cellfeed.bridge.gateway.limits import BLOCKS_BYTES_MAX
from cellfeed.bridge.gateway.security.listeners import Listener
from cellfeed.bridge.gateway.topics.declared_topics import VirtualTopic
from cellfeed.store.http.server.credentials import SignedTokens
from cellfeed.store.http.server.listening import HttpListener
from cellfeed.store.security.audit import AuditLog
from cellfeed.store.security.peer_limits import PeerLimits


@dataclass(frozen=True)
class GatewayConfig:
    """``name`` is this gateway's alone among
    those of the datastore: its node id hangs on it. ``formats`` maps a topic's name, or ``*`` for
    the others, to ``avro``, ``json`` or ``cloudevents``, ``compressions`` likewise to ``none``,
    ``gzip``, ``snappy``, ``lz4`` or ``zstd``; ``topics`` are declared views with a format and a
    compression of their own. Where ``*`` is avro, topics of columns with a registered schema are
    typed, unless ``formats`` names them. Kept blocks take ``blocks_bytes_max`` of memory and,
    unless that is 0, ``block_files_bytes_max`` of ``blocks_directory``. The groups of a gateway
    that does not give a sign of life for ``session_timeout_s`` are coordinated by others.
    ``listeners``: instead of the one that ``host``, ``port`` and ``advertised_*`` make.
    ``registry``: the listener of the schema registry, instead of ``host`` and ``registry_port``.
    ``signed`` verifies tokens of identity providers there, and ``audit`` gets a line of each of its
    requests. ``limits``: of its peers."""

    host: str = "127.0.0.1"
    port: int = 9092
    registry_port: int = 8081
    name: str = "gateway"
    advertised_host: str | None = None
    advertised_port: int | None = None
    listeners: tuple[Listener, ...] = ()
    formats: Mapping[str, str] = field(default_factory=lambda: {"*": "avro"})
    group_initial_delay_s: float = 3.0
    session_timeout_s: float = 4.0
    topics: tuple[VirtualTopic, ...] = ()
    compressions: Mapping[str, CompressionName] = field(default_factory=dict)
    blocks_bytes_max: int = BLOCKS_BYTES_MAX
    blocks_directory: Path = Path("blocks")
    block_files_bytes_max: int = 0
    registry: HttpListener | None = None
    signed: SignedTokens | None = None
    audit: AuditLog | None = None
    limits: PeerLimits = field(default_factory=PeerLimits)
