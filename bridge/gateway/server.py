"""The gateway: a datastore's logs for any Kafka client, straight from the store. Nothing is copied;
the whole history is there.

One event loop serves all connections; blocking work (scans, encoding, the coordinator) runs on a
few threads beside it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.events.registry_http import registry_app
from cellfeed.bridge.gateway.accepting import Acceptor
from cellfeed.bridge.gateway.cluster_id import cluster_id_of
from cellfeed.bridge.gateway.config import GatewayConfig
from cellfeed.bridge.gateway.context import GatewayContext
from cellfeed.bridge.gateway.fetch.kept_fetches import KeptFetches
from cellfeed.bridge.gateway.following import (
    follow_certificates,
    follow_heads,
    follow_security,
    follow_typed,
    refresh_heads,
    show_turns,
)
from cellfeed.bridge.gateway.groups.active_groups import ActiveGroups
from cellfeed.bridge.gateway.groups.cluster import GatewayCluster
from cellfeed.bridge.gateway.groups.group_table import GroupTable
from cellfeed.bridge.gateway.limits import COORDINATION_THREADS
from cellfeed.bridge.gateway.log.block_files import BlockFiles
from cellfeed.bridge.gateway.log.blocks import Blocks
from cellfeed.bridge.gateway.log.newest import Newest
from cellfeed.bridge.gateway.metrics import GatewayMetrics, with_metrics
from cellfeed.bridge.gateway.nodes import register
from cellfeed.bridge.gateway.registry_server import RegistryServer
from cellfeed.bridge.gateway.security.listeners import Listener as GatewayListener
from cellfeed.bridge.gateway.security.listeners import check_host, check_listener
from cellfeed.bridge.gateway.served_topics import registry_of, topics_of
from cellfeed.bridge.gateway.topics.declared_topics import check_topics
from cellfeed.bridge.gateway.topics.typed_topics import TypedTopics
from cellfeed.store.background import keep_running
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import StaleWriter
from cellfeed.store.following.heads import LogHeads
from cellfeed.store.http.server.listening import HttpListener
from cellfeed.store.security.authority import Authority
from cellfeed.store.security.quotas import Quotas
from cellfeed.store.wakeups.datagrams import Listener

_log = logging.getLogger("cellfeed.gateway")
_THREADS: Final = 4


class Gateway:
    """``await start()``, then it serves until ``await stop()``. ``port`` and ``registry_port`` are
    the bound ones, also when 0 was asked for."""

    def __init__(
        self, datastore: Datastore, coordinator: Coordinator, config: GatewayConfig
    ) -> None:
        check_host(config.host)
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
        self._acceptor = Acceptor(lambda: self.context, config.limits)
        self._background: list[asyncio.Task[None]] = []
        self._listener: Listener | None = None
        self._registry: RegistryServer | None = None
        self._block_files: BlockFiles | None = None
        self._quotas = Quotas(config.limits.quotas)
        self._groups = GroupTable(config.group_initial_delay_s)
        self._cluster: GatewayCluster | None = None
        self.context: GatewayContext | None = None
        self.superseded: asyncio.Future[StaleWriter] | None = None
        """Filled when another process has taken this gateway's name."""
        self.port = 0
        self.registry_port = 0

    async def start(self) -> None:
        """Binds both ports, reads the heads and joins the other gateways, so that the first client
        finds everything there. A start that fails gives back all that it had taken."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        config, engine = self._config, self._datastore.engine
        typed = await asyncio.get_running_loop().run_in_executor(
            self._executor, TypedTopics, self._datastore.state
        )
        topics = topics_of(self._datastore, config, typed)
        registry = registry_of(self._datastore, config, topics, typed)
        if config.block_files_bytes_max:
            self._block_files = BlockFiles(
                config.blocks_directory, config.name, engine, config.block_files_bytes_max
            )
        blocks = Blocks(engine, self._executor, config.blocks_bytes_max, self._block_files)
        heads = LogHeads(engine, self._executor, blocks.trim, blocks.erased)
        await heads.refresh()
        for each in self._listeners:
            await self._acceptor.bind(each)
        self.port = next(iter(self.ports.values()))
        authority = Authority(self._datastore.state)
        await asyncio.get_running_loop().run_in_executor(self._executor, authority.look)
        figures = GatewayMetrics(
            lambda: self.connections, self._groups, blocks, self._block_files, self._quotas
        )
        app = with_metrics(registry_app(registry), figures)
        where = config.registry or HttpListener(config.host, config.registry_port)
        self._registry = RegistryServer(
            app, where, self._datastore.name, authority, config.signed, config.audit, self._quotas
        )
        await self._registry.start()
        self.registry_port = self._registry.port
        cluster = await self._join_cluster(typed.parks)
        self.context = GatewayContext(
            engine=engine,
            offsets=self._coordinator,
            topics=topics,
            heads=heads,
            blocks=blocks,
            newest=Newest(engine, self._executor),
            kept_fetches=KeptFetches(heads),
            groups=self._groups,
            cluster=cluster,
            active_groups=ActiveGroups(
                self._coordinator, cluster, self._groups, self._coordination_executor
            ),
            executor=self._executor,
            coordination_executor=self._coordination_executor,
            cluster_id=cluster_id_of(self._datastore),
            tallies=figures.requests,
            security=authority.security,
            quotas=self._quotas,
            protections={each.name: each.security for each in self._listeners},
        )
        awaited = self._datastore.awaited
        self._coordinator.when_saved(awaited.wake)
        listener = self._listener = Listener(self._datastore.state, config.name, awaited)
        listener.shows = heads.watermark
        asyncio.get_running_loop().add_reader(
            listener.sock.fileno(), refresh_heads, self.context, listener
        )
        loops: dict[str, Callable[[], Awaitable[None]]] = {
            "gateway-heads": partial(follow_heads, self.context, listener),
            "gateway-acls": partial(follow_security, self.context, authority),
            "gateway-certificates": partial(follow_certificates, self.refresh_certificates),
            "gateway-schemas": partial(follow_typed, self.context, typed),
            "gateway-turns": show_turns,
        }
        self._background += [
            asyncio.create_task(keep_running(name, run)) for name, run in loops.items()
        ]
        self._acceptor.serve()
        listeners = ", ".join(
            f"{each.name} {each.host}:{self.ports[each.name]} ({each.security})"
            for each in self._listeners
        )
        _log.info(
            "gateway for %s on %s, schema registry on port %d",
            self._datastore.name,
            listeners,
            self.registry_port,
        )

    async def stop(self) -> None:
        """Gives its groups to the other gateways, closes every connection and unbinds its ports."""
        for task in self._background:
            task.cancel()
        self._acceptor.stop()
        if self._cluster is not None:
            await self._cluster.stop()
        await self._acceptor.close()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._registry is not None:
            await self._registry.stop()
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.sock.fileno())
            self._listener.close()
        self._groups.close()
        self._executor.shutdown(wait=True)
        if self._block_files is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._block_files.close)
        self._coordination_executor.shutdown(wait=True)

    def refresh_certificates(self) -> None:
        """Takes certificates whose files were replaced. Reads files; in any thread."""
        self._acceptor.refresh_certificates()
        if self._registry is not None:
            self._registry.certificates.refresh()

    @property
    def connections(self) -> int:
        """Open connections."""
        return self._acceptor.connections

    @property
    def ports(self) -> dict[str, int]:
        """By listener."""
        return self._acceptor.ports

    async def _join_cluster(self, parks: tuple[str, ...]) -> GatewayCluster:
        config, loop = self._config, asyncio.get_running_loop()
        state = self._datastore.state
        listeners = {each.name: self._advertised(each) for each in self._listeners}
        registry = (config.advertised_host or config.host, self.registry_port)
        node = await loop.run_in_executor(
            self._executor, register, state, config.name, listeners, registry, parks
        )
        superseded = self.superseded = loop.create_future()
        cluster = self._cluster = GatewayCluster(
            self._coordinator,
            state,
            self._groups,
            name=config.name,
            node=node,
            shards=self._datastore.engine.shards,
            session_timeout_s=config.session_timeout_s,
            on_superseded=lambda error: None if superseded.done() else superseded.set_result(error),
        )
        await cluster.start()
        return cluster

    def _advertised(self, listener: GatewayListener) -> tuple[str, int]:
        host, port = listener.advertised or (listener.host, 0)
        return host, port or self.ports[listener.name]
