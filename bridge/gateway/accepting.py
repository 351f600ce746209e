"""Accepts the connections of clients: binds the listeners, and refuses connections beyond the
limits."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import Final

from cellfeed.bridge.gateway.connection import Connection
from cellfeed.bridge.gateway.context import GatewayContext
from cellfeed.bridge.gateway.limits import (
    AUTHENTICATION_TIMEOUT_S,
    CONNECTIONS_MAX,
    CONNECTIONS_PER_ADDRESS_MAX,
)
from cellfeed.bridge.gateway.security.authentication import Authentication
from cellfeed.bridge.gateway.security.listeners import Listener, tls_context
from cellfeed.bridge.gateway.security.subject import subject_principal
from cellfeed.bridge.gateway.security.users import ANONYMOUS
from cellfeed.bridge.gateway.wire.large_frames import LargeFrames

_log = logging.getLogger("cellfeed.gateway")
_SEND_BUFFER_BYTES: Final = 4 << 20
"""Bytes that may wait for a slow reader before its next request is looked at."""


class Acceptor:
    """See the module. ``context``: None until the gateway is ready to serve.
    ``authentication_executor`` runs blocking calls while a client authenticates."""

    def __init__(
        self, context: Callable[[], GatewayContext | None], authentication_executor: Executor
    ) -> None:
        self._context = context
        self._executor = authentication_executor
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._by_address: Counter[str] = Counter()
        self._large_frames = LargeFrames()
        self.ports: dict[str, int] = {}
        """By listener."""

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    async def bind(self, listener: Listener) -> None:
        """Takes the listener's port. Nobody is served before :meth:`serve`."""
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

    async def serve(self) -> None:
        """Begins to accept connections on every listener."""
        for server in self._servers:
            await server.start_serving()

    def stop(self) -> None:
        """Accepts no further connections."""
        for server in self._servers:
            server.close()

    async def close(self) -> None:
        """Ends every connection."""
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(
        self, listener: Listener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        host = str((writer.get_extra_info("peername") or ("?",))[0])
        if (
            (context := self._context()) is None
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
        authentication = (
            Authentication(listener.mechanisms, lambda: context.security, self._executor, host)
            if listener.has_sasl
            else None
        )
        principal = subject_principal(writer.get_extra_info("peercert")) or ANONYMOUS
        writer.transport.set_write_buffer_limits(high=_SEND_BUFFER_BYTES)
        try:
            with suppress(asyncio.CancelledError):
                connection = Connection(
                    context,
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
