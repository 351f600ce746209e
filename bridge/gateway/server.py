"""The gateway: a datastore's logs for any Kafka client, straight from the store. Nothing is copied;
the whole history is there.

One event loop serves all connections; what blocks (scans, encoding, the coordinator) runs on a few
threads beside it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID, uuid5

import uvicorn

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.events.compression import CompressionName, compression_named
from cellfeed.bridge.events.named_formats import event_format
from cellfeed.bridge.events.registry import SchemaRegistry, envelope_schema_id
from cellfeed.bridge.events.registry_http import registry_app
from cellfeed.bridge.gateway.connection import Connection
from cellfeed.bridge.gateway.context import GatewayContext
from cellfeed.bridge.gateway.fetch.kept_fetches import KeptFetches
from cellfeed.bridge.gateway.groups.active_groups import ActiveGroups
from cellfeed.bridge.gateway.groups.cluster import GatewayCluster
from cellfeed.bridge.gateway.groups.group_table import GroupTable
from cellfeed.bridge.gateway.limits import (
    AUTHENTICATION_TIMEOUT_S,
    BLOCKS_BYTES_MAX,
    CONNECTIONS_MAX,
    CONNECTIONS_PER_ADDRESS_MAX,
    COORDINATION_THREADS,
    POLL_INTERVAL_S,
    SECURITY_LOOK_S,
)
from cellfeed.bridge.gateway.log.block_files import BlockFiles
from cellfeed.bridge.gateway.log.blocks import Blocks
from cellfeed.bridge.gateway.log.heads import LogHeads
from cellfeed.bridge.gateway.log.newest import Newest
from cellfeed.bridge.gateway.metrics import GatewayMetrics, with_metrics
from cellfeed.bridge.gateway.nodes import register
from cellfeed.bridge.gateway.security.authentication import Authentication
from cellfeed.bridge.gateway.security.listeners import Listener as GatewayListener
from cellfeed.bridge.gateway.security.listeners import (
    check_listener,
    is_loopback,
    subject_principal,
    tls_context,
)
from cellfeed.bridge.gateway.security.users import ANONYMOUS, read_security
from cellfeed.bridge.gateway.topics.declared_topics import VirtualTopic, check_topics
from cellfeed.bridge.gateway.topics.topics import Topics, legal_topic_name
from cellfeed.bridge.gateway.topics.typed_topics import TYPED_LOOK_S, TypedTopics
from cellfeed.bridge.gateway.wire.large_frames import LargeFrames
from cellfeed.bridge.typed.typed_format import TypedFormat
from cellfeed.store.background import keep_running
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError, InvalidRequest, ProtectData, StaleWriter
from cellfeed.store.gc_tuning import collect_seldom
from cellfeed.store.http.server.asgi import App
from cellfeed.store.wakeups import Listener

_log = logging.getLogger("cellfeed.gateway")
_THREADS: Final = 4
_CLUSTER_IDS: Final = UUID("5d1c8a6e-2c1b-5b9e-9f57-1d0a7f6f2b11")
"""For datastores that were made before histories had an identity."""
_SEND_BUFFER_BYTES: Final = 4 << 20
"""Bytes that may wait for a slow reader before its next request is looked at."""


@dataclass(frozen=True)
class GatewayConfig:
    """Where the gateway listens and what its topics carry. ``name`` is this gateway's alone among
    those of the datastore: its node id hangs on it. ``formats`` maps a topic's name, or ``*`` for
    the others, to ``avro``, ``json`` or ``cloudevents``, ``compressions`` likewise to ``none``,
    ``gzip``, ``snappy``, ``lz4`` or ``zstd``; ``topics`` are declared views with a format and a
    compression of their own. Where ``*`` is avro, topics of columns with a registered schema are
    typed, unless ``formats`` names them. Kept blocks take ``blocks_bytes_max`` of memory and,
    unless that is 0, ``block_files_bytes_max`` of ``blocks_directory``. The groups of a gateway
    that does not give a sign of life for ``session_timeout_s`` are coordinated by others.
    ``listeners``: instead of the one that ``host``, ``port`` and ``advertised_*`` make; the schema
    registry is on ``host``."""

    host: str = "127.0.0.1"
    port: int = 9092
    registry_port: int = 8081
    name: str = "gateway"
    advertised_host: str | None = None
    advertised_port: int | None = None
    listeners: tuple[GatewayListener, ...] = ()
    formats: Mapping[str, str] = field(default_factory=lambda: {"*": "avro"})
    group_initial_delay_s: float = 3.0
    session_timeout_s: float = 4.0
    topics: tuple[VirtualTopic, ...] = ()
    compressions: Mapping[str, CompressionName] = field(default_factory=dict)
    blocks_bytes_max: int = BLOCKS_BYTES_MAX
    blocks_directory: Path = Path("blocks")
    block_files_bytes_max: int = 0


class Gateway:
    """``await start()``, then it serves until ``await stop()``. ``port`` and ``registry_port`` tell
    where, also when 0 was asked for."""

    def __init__(
        self, datastore: Datastore, coordinator: Coordinator, config: GatewayConfig
    ) -> None:
        _check_loopback(config.host)
        check_topics(datastore.name, config.topics, config.formats, config.compressions)
        advertised = (config.advertised_host or config.host, config.advertised_port or config.port)
        is_given = config.advertised_host is not None or config.advertised_port is not None
        self._listeners = config.listeners or (
            GatewayListener(
                host=config.host, port=config.port, advertised=advertised if is_given else None
            ),
        )
        for each in self._listeners:
            check_listener(each)
        self._datastore = datastore
        self._coordinator = coordinator
        self._config = config
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="gateway")
        self._coordination_executor = ThreadPoolExecutor(
            COORDINATION_THREADS, thread_name_prefix="gateway-offsets"
        )
        self._connections: set[asyncio.Task[None]] = set()
        self._large_frames = LargeFrames()
        self._background: list[asyncio.Task[None]] = []
        self._listener: Listener | None = None
        self._servers: list[asyncio.Server] = []
        self._by_address: Counter[str] = Counter()
        self._registry: uvicorn.Server | None = None
        self._block_files: BlockFiles | None = None
        self._groups = GroupTable(config.group_initial_delay_s)
        self._cluster: GatewayCluster | None = None
        self.context: GatewayContext | None = None
        self.superseded: asyncio.Future[StaleWriter] | None = None
        """Filled when another process has taken this gateway's name."""
        self.ports: dict[str, int] = {}
        """By listener."""
        self.port = 0
        self.registry_port = 0

    async def start(self) -> None:
        """Binds both ports, reads the heads once and joins the other gateways, so that the first
        client finds everything there."""
        config, engine = self._config, self._datastore.engine
        typed = await asyncio.get_running_loop().run_in_executor(
            self._executor, TypedTopics, self._datastore.state
        )
        topics = _topics(self._datastore, config, typed)
        registry = _registry(self._datastore, config, topics, typed)
        if config.block_files_bytes_max:
            self._block_files = BlockFiles(
                config.blocks_directory, config.name, engine, config.block_files_bytes_max
            )
        blocks = Blocks(engine, self._executor, config.blocks_bytes_max, self._block_files)
        heads = LogHeads(engine, self._executor, blocks.trim, blocks.erased)
        await heads.refresh()
        for each in self._listeners:
            await self._bind(each)
        self.port = next(iter(self.ports.values()))
        await self._start_registry(
            with_metrics(
                registry_app(registry),
                GatewayMetrics(lambda: self.connections, self._groups, blocks, self._block_files),
            )
        )
        await self._join_cluster()
        security = await asyncio.get_running_loop().run_in_executor(
            self._executor, read_security, self._datastore.state
        )
        assert self._cluster is not None  # noqa: S101 (for the type checker)
        self.context = GatewayContext(
            engine=engine,
            offsets=self._coordinator,
            topics=topics,
            heads=heads,
            blocks=blocks,
            newest=Newest(engine, self._executor),
            kept_fetches=KeptFetches(heads),
            groups=self._groups,
            cluster=self._cluster,
            active_groups=ActiveGroups(
                self._coordinator, self._cluster, self._groups, self._coordination_executor
            ),
            executor=self._executor,
            coordination_executor=self._coordination_executor,
            cluster_id=cluster_id_of(self._datastore),
            security=security,
        )
        self._listener = Listener(self._datastore.state, config.name)
        asyncio.get_running_loop().add_reader(self._listener.sock.fileno(), self._woken)
        loops: dict[str, Callable[[], Awaitable[None]]] = {
            "gateway-heads": self._poll,
            "gateway-acls": partial(self._follow_security, self.context),
            "gateway-schemas": partial(self._follow_typed, self.context, typed),
        }
        self._background += [
            asyncio.create_task(keep_running(name, run)) for name, run in loops.items()
        ]
        for server in self._servers:
            await server.start_serving()
        where = ", ".join(
            f"{each.name} {each.host}:{self.ports[each.name]} ({each.security})"
            for each in self._listeners
        )
        _log.info(
            "gateway for %s on %s, schema registry on port %d",
            self._datastore.name,
            where,
            self.registry_port,
        )

    async def stop(self) -> None:
        """Gives its groups to the other gateways, closes every connection and gives back what was
        bound."""
        for task in self._background:
            task.cancel()
        for server in self._servers:
            server.close()
        if self._cluster is not None:
            await self._cluster.stop()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._background, *self._connections, return_exceptions=True)
        if self._registry is not None:
            self._registry.should_exit = True
            await self._registry_task
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.sock.fileno())
            self._listener.close()
        self._groups.close()
        self._executor.shutdown(wait=True)
        if self._block_files is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._block_files.close)
        self._coordination_executor.shutdown(wait=True)

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    async def _bind(self, listener: GatewayListener) -> None:
        tls = tls_context(listener)

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._accept(listener, reader, writer)

        handshake_s = AUTHENTICATION_TIMEOUT_S if tls is not None else None
        server = await asyncio.start_server(
            accept,
            listener.host,
            listener.port,
            backlog=1024,
            start_serving=False,
            ssl=tls,
            ssl_handshake_timeout=handshake_s,
        )
        self._servers.append(server)
        self.ports[listener.name] = server.sockets[0].getsockname()[1]

    async def _accept(
        self, listener: GatewayListener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        host = str((writer.get_extra_info("peername") or ("?",))[0])
        if (
            self.context is None
            or len(self._connections) >= CONNECTIONS_MAX
            or self._by_address[host] >= CONNECTIONS_PER_ADDRESS_MAX
        ):
            _log.warning(
                "a connection from %s was refused: %d are open, %d of them from there",
                host,
                len(self._connections),
                self._by_address[host],
            )
            writer.close()
            return
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a connection is served by a task")
        self._connections.add(task)
        self._by_address[host] += 1
        context = self.context
        authentication = (
            Authentication(
                listener.mechanisms, lambda: context.security, self._coordination_executor, host
            )
            if listener.has_sasl
            else None
        )
        principal = subject_principal(writer.get_extra_info("peercert")) or ANONYMOUS
        writer.transport.set_write_buffer_limits(high=_SEND_BUFFER_BYTES)
        try:
            with suppress(asyncio.CancelledError):
                connection = Connection(
                    self.context,
                    listener.name,
                    self._large_frames,
                    reader,
                    writer,
                    principal=principal,
                    authentication=authentication,
                )
                await connection.serve()
        finally:
            self._connections.discard(task)
            self._by_address[host] -= 1
            if not self._by_address[host]:
                del self._by_address[host]
            writer.close()

    async def _join_cluster(self) -> None:
        config, loop = self._config, asyncio.get_running_loop()
        state = self._datastore.state
        listeners = {each.name: self._advertised(each) for each in self._listeners}
        registry = (config.advertised_host or config.host, self.registry_port)
        node = await loop.run_in_executor(
            self._executor, register, state, config.name, listeners, registry
        )
        superseded = self.superseded = loop.create_future()
        self._cluster = GatewayCluster(
            self._coordinator,
            state,
            self._groups,
            name=config.name,
            node=node,
            shards=self._datastore.engine.shards,
            session_timeout_s=config.session_timeout_s,
            on_superseded=lambda error: None if superseded.done() else superseded.set_result(error),
        )
        await self._cluster.start()

    def _advertised(self, listener: GatewayListener) -> tuple[str, int]:
        host, port = listener.advertised or (listener.host, 0)
        return host, port or self.ports[listener.name]

    async def _follow_security(self, context: GatewayContext) -> None:
        while True:
            await asyncio.sleep(SECURITY_LOOK_S)
            try:
                security = await context.in_thread(read_security, self._datastore.state)
                if security != context.security:
                    context.security = security
                    context.kept_fetches.wake()
            except CellfeedError as error:
                _log.warning(
                    "users and ACLs cannot be read just now, and stay as they were: %s", error
                )

    async def _follow_typed(self, context: GatewayContext, typed: TypedTopics) -> None:
        while True:
            await asyncio.sleep(TYPED_LOOK_S)
            try:
                await context.in_thread(typed.look)
            except CellfeedError as error:
                _log.warning(
                    "schemas of columns cannot be read just now, and stay as they were: %s", error
                )

    def _woken(self) -> None:
        if self._listener is not None and self.context is not None:
            self._listener.drain()
            self.context.heads.refresh_soon(self._cannot_read)

    async def _poll(self) -> None:
        """The fallback for lost wake-ups: looks at the change token, reads the counters when it
        moved, keeps the wake-up address alive."""
        context, listener = self.context, self._listener
        if context is None or listener is None:
            return
        seen: int | None = None
        while True:
            try:
                token = await context.in_thread(context.engine.change_token)
                if token != seen:
                    await context.heads.refresh()
                    seen = token
                await context.in_thread(listener.renew)
            except CellfeedError as error:
                self._cannot_read(error)
            await asyncio.sleep(POLL_INTERVAL_S)

    def _cannot_read(self, error: BaseException) -> None:
        _log.warning("the store cannot be read just now: %s", error)

    async def _start_registry(self, app: App) -> None:
        config = uvicorn.Config(
            app,
            host=self._config.host,
            port=self._config.registry_port,
            log_level="warning",
            lifespan="off",
            access_log=False,
        )
        self._registry = _QuietServer(config)
        self._registry_task = asyncio.create_task(self._registry.serve())
        while not self._registry.started:
            if self._registry_task.done():
                raise InvalidRequest(
                    f"the schema registry's port {self._config.registry_port} on"
                    f" {self._config.host} cannot be bound"
                )
            await asyncio.sleep(0.005)
        self.registry_port = self._registry.servers[0].sockets[0].getsockname()[1]


class _QuietServer(uvicorn.Server):
    """uvicorn inside another program: signals are the program's."""

    def install_signal_handlers(self) -> None:
        """Leaves the handlers as they are."""

    def capture_signals(self) -> object:  # type: ignore[override]
        """Leaves the handlers as they are."""
        from contextlib import nullcontext

        return nullcontext()


def run_gateway(
    datastore: Datastore,
    coordinator: Coordinator,
    config: GatewayConfig,
    stop: threading.Event,
    on_started: Callable[[int, int], None] | None = None,
) -> None:
    """Serves until ``stop`` is set; blocks. ``on_started`` gets both ports. Raises ProtectData for
    an address beyond loopback, StaleWriter when another process has taken this gateway's name.
    """

    async def serve() -> None:
        gateway = Gateway(datastore, coordinator, config)
        await gateway.start()
        superseded = gateway.superseded
        if superseded is None:
            raise RuntimeError("a gateway that was started knows of the others")
        superseded.add_done_callback(lambda _: stop.set())
        collect_seldom()
        if on_started is not None:
            on_started(gateway.port, gateway.registry_port)
        await asyncio.get_running_loop().run_in_executor(None, stop.wait)
        await gateway.stop()
        if superseded.done() and not superseded.cancelled():
            raise superseded.result()

    try:
        import uvloop
    except ImportError:
        asyncio.run(serve())
    else:
        uvloop.run(serve())


def _topics(datastore: Datastore, config: GatewayConfig, typed: TypedTopics) -> Topics:
    names = {"*": "avro", **config.formats}
    used = {*names.values(), *(topic.format for topic in config.topics if topic.format != "typed")}
    formats = {name: event_format(name, datastore.name, envelope_schema_id()) for name in used}
    declared = [
        (topic, formats[topic.format] if topic.format != "typed" else typed.format_of(topic.column))
        for topic in config.topics
    ]
    compressions = {topic: compression_named(name) for topic, name in config.compressions.items()}
    topics = Topics(
        datastore.name,
        datastore.engine.columns,
        {topic: formats[name] for topic, name in names.items()},
        declared,
        compressions,
    )
    typed.follow(topics)
    return topics


def _registry(
    datastore: Datastore, config: GatewayConfig, topics: Topics, typed: TypedTopics
) -> SchemaRegistry:
    names = {"*": "avro", **config.formats}

    def is_avro(topic: str) -> bool:
        topics.refresh()
        found = topics.named(topic)
        return found is not None and (
            found.event_format.name == "avro" or isinstance(found.event_format, TypedFormat)
        )

    return SchemaRegistry(
        datastore.name,
        datastore.engine.columns,
        serves_avro=lambda topic: (
            legal_topic_name(topic) and names.get(topic, names["*"]) == "avro"
        ),
        declared=[topic.name for topic in config.topics if topic.format in ("avro", "typed")],
        unlisted=is_avro,
        typed=typed,
    )


def _check_loopback(host: str) -> None:
    if not is_loopback(host):
        raise ProtectData(
            f"host {host!r} is not loopback: the schema registry and a listener without TLS and"
            " authentication listen on loopback only; for clients of other hosts give `listeners`"
            " with security sasl_tls"
        )


def cluster_id_of(datastore: Datastore) -> str:
    """The Kafka cluster id by which clients know the log: of the datastore's history, so another
    one after a restore."""
    history_id = datastore.history_id
    return str(UUID(history_id)) if history_id else str(uuid5(_CLUSTER_IDS, datastore.name))
