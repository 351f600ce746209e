"""The gateway: a datastore's logs for any Kafka client, straight from the store. Nothing is copied; the whole history is there.

One event loop serves all connections; what blocks (scans, encoding, the coordinator) runs on a few threads beside it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final
from uuid import UUID, uuid5

import uvicorn

from bridge.coordination.contract import Offsets
from bridge.events.envelope import AvroFormat, EventFormat, JsonFormat
from bridge.events.registry import SchemaRegistry
from bridge.events.registry_http import registry_app
from bridge.gateway.blocks import Blocks
from bridge.gateway.connection import Connection, LargeFrames
from bridge.gateway.context import GatewayContext
from bridge.gateway.group_table import GroupTable
from bridge.gateway.heads import LogHeads
from bridge.gateway.limits import BLOCKS_BYTES_MAX, CONNECTIONS_MAX, POLL_INTERVAL_S
from bridge.gateway.topics import Topics, legal_topic_name
from store.datastore import Datastore
from store.errors import InvalidRequest, ProtectData
from store.wakeups import Listener

_log = logging.getLogger("cellfeed.gateway")
_THREADS: Final = 4
_CLUSTER_IDS: Final = UUID("5d1c8a6e-2c1b-5b9e-9f57-1d0a7f6f2b11")
_SEND_BUFFER_BYTES: Final = 4 << 20
"""Bytes that may wait for a slow reader before its next request is looked at."""


@dataclass(frozen=True)
class GatewayConfig:
    """Where the gateway listens and what its topics carry. ``formats`` maps a topic's name, or ``*`` for the others, to ``avro`` or ``json``."""

    host: str = "127.0.0.1"
    port: int = 9092
    registry_port: int = 8081
    name: str = "gateway"
    node_id: int = 1
    advertised_host: str | None = None
    advertised_port: int | None = None
    formats: Mapping[str, str] = field(default_factory=lambda: {"*": "avro"})
    group_initial_delay_s: float = 3.0
    blocks_bytes_max: int = BLOCKS_BYTES_MAX


class Gateway:
    """``await start()``, then it serves until ``await stop()``. ``port`` and ``registry_port`` tell where, also when 0 was asked for."""

    def __init__(self, datastore: Datastore, offsets: Offsets, config: GatewayConfig) -> None:
        for host in (config.host,):
            _check_loopback(host)
        self._datastore = datastore
        self._offsets = offsets
        self._config = config
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="gateway")
        self._connections: set[asyncio.Task[None]] = set()
        self._large_frames = LargeFrames()
        self._background: list[asyncio.Task[None]] = []
        self._listener: Listener | None = None
        self._server: asyncio.Server | None = None
        self._registry: uvicorn.Server | None = None
        self.context: GatewayContext | None = None
        self.port = 0
        self.registry_port = 0

    async def start(self) -> None:
        """Binds both ports and reads the heads once, so that the first client finds everything there."""
        config, engine = self._config, self._datastore.engine
        names = {"*": "avro", **config.formats}
        registry = SchemaRegistry(
            self._datastore.name, engine.columns, serves_avro=lambda topic: legal_topic_name(topic) and names.get(topic, names["*"]) == "avro"
        )
        formats = {topic: _event_format(name, registry) for topic, name in names.items()}
        topics = Topics(self._datastore.name, engine.columns, formats)
        heads = LogHeads(engine, self._executor)
        blocks = Blocks(engine, self._executor, config.blocks_bytes_max)
        await heads.refresh()
        self._server = await asyncio.start_server(self._accept, config.host, config.port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        self.context = GatewayContext(
            engine=engine,
            offsets=self._offsets,
            topics=topics,
            heads=heads,
            blocks=blocks,
            groups=GroupTable(config.group_initial_delay_s),
            executor=self._executor,
            cluster_id=str(uuid5(_CLUSTER_IDS, self._datastore.name)),
            node_id=config.node_id,
            advertised_host=config.advertised_host or config.host,
            advertised_port=config.advertised_port or self.port,
        )
        self._listener = Listener(self._datastore.state, config.name)
        asyncio.get_running_loop().add_reader(self._listener.sock.fileno(), self._woken)
        self._background.append(asyncio.create_task(self._poll()))
        await self._start_registry(registry)
        _log.info("gateway for %s on %s:%d, schema registry on port %d", self._datastore.name, config.host, self.port, self.registry_port)

    async def stop(self) -> None:
        """Closes every connection and gives back what was bound."""
        for task in self._background:
            task.cancel()
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._background, *self._connections, return_exceptions=True)
        if self._registry is not None:
            self._registry.should_exit = True
            await self._registry_task
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.sock.fileno())
            self._listener.close()
        if self.context is not None:
            self.context.groups.close()
        self._executor.shutdown(wait=True)

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.context is None or len(self._connections) >= CONNECTIONS_MAX:
            _log.warning("a connection was refused: %d are open", len(self._connections))
            writer.close()
            return
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a connection is served by a task")
        self._connections.add(task)
        writer.transport.set_write_buffer_limits(high=_SEND_BUFFER_BYTES)
        try:
            with suppress(asyncio.CancelledError):
                await Connection(self.context, self._large_frames, reader, writer).serve()
        finally:
            self._connections.discard(task)
            writer.close()

    def _woken(self) -> None:
        if self._listener is not None and self.context is not None:
            self._listener.drain()
            self.context.heads.refresh_soon(self._cannot_read)

    async def _poll(self) -> None:
        """The fallback for lost wake-ups: looks at the change token, reads the counters when it moved, keeps the wake-up address alive."""
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
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self._cannot_read(error)
            await asyncio.sleep(POLL_INTERVAL_S)

    def _cannot_read(self, error: BaseException) -> None:
        _log.warning("the store cannot be read just now: %s", error)

    async def _start_registry(self, registry: SchemaRegistry) -> None:
        config = uvicorn.Config(
            registry_app(registry), host=self._config.host, port=self._config.registry_port, log_level="warning", lifespan="off", access_log=False
        )
        self._registry = _QuietServer(config)
        self._registry_task = asyncio.create_task(self._registry.serve())
        while not self._registry.started:
            if self._registry_task.done():
                raise InvalidRequest(f"the schema registry's port {self._config.registry_port} on {self._config.host} cannot be bound")
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
    datastore: Datastore, offsets: Offsets, config: GatewayConfig, stop: threading.Event, on_started: Callable[[int, int], None] | None = None
) -> None:
    """Serves until ``stop`` is set; blocks. ``on_started`` is told both ports. Raises ProtectData for an address beyond loopback."""

    async def serve() -> None:
        gateway = Gateway(datastore, offsets, config)
        await gateway.start()
        if on_started is not None:
            on_started(gateway.port, gateway.registry_port)
        await asyncio.get_running_loop().run_in_executor(None, stop.wait)
        await gateway.stop()

    try:
        import uvloop
    except ImportError:
        asyncio.run(serve())
    else:
        uvloop.run(serve())


def _event_format(name: str, registry: SchemaRegistry) -> EventFormat:
    if name == "avro":
        return AvroFormat(registry.envelope_id)
    if name == "json":
        return JsonFormat()
    raise InvalidRequest(f"topic format {name!r} does not exist; known are avro and json")


def _check_loopback(host: str) -> None:
    if host == "localhost":
        return
    try:
        loopback = ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ProtectData(f"the gateway has no TLS and no authentication: it listens on loopback only, not on {host!r}")
