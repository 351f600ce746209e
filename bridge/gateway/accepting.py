"""The listeners of a gateway: binds them, and serves the connections that come, within limits
(:mod:`cellfeed.store.security.accepting`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final

from cellfeed.bridge.gateway.connection import Connection
from cellfeed.bridge.gateway.context import GatewayContext
from cellfeed.bridge.gateway.limits import CONNECTIONS_MAX, DESCRIPTORS_RESERVED
from cellfeed.bridge.gateway.security.authentication import Authentication
from cellfeed.bridge.gateway.security.listeners import Listener
from cellfeed.bridge.gateway.wire.large_frames import LargeFrames
from cellfeed.store.background import keep_running
from cellfeed.store.descriptors import descriptors_max
from cellfeed.store.limits import AUTHENTICATION_THREADS, PEER_WARNINGS_MAX, PEER_WARNINGS_S
from cellfeed.store.security.accepting import accept_from, shake_hands
from cellfeed.store.security.certificates import Certificates
from cellfeed.store.security.limited_warnings import LimitedWarnings
from cellfeed.store.security.open_connections import OpenConnections
from cellfeed.store.security.peer_limits import PeerLimits
from cellfeed.store.security.subject import subject_principal
from cellfeed.store.security.users import ANONYMOUS

_log = logging.getLogger("cellfeed.gateway")
_refusals = LimitedWarnings(
    _log, "connections refused or not let in", PEER_WARNINGS_MAX, PEER_WARNINGS_S
)
_BACKLOG: Final = 1_024


class Acceptor:
    """See the module. ``context``: None until the gateway is ready to serve. Used on the event
    loop."""

    def __init__(
        self, context: Callable[[], GatewayContext | None], limits: PeerLimits | None = None
    ) -> None:
        limits = limits or PeerLimits()
        self._context = context
        self._executor = ThreadPoolExecutor(
            AUTHENTICATION_THREADS, thread_name_prefix="gateway-passwords"
        )
        self._bound: list[tuple[Listener, Certificates, socket.socket]] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._large_frames = LargeFrames()
        wanted = limits.connections or CONNECTIONS_MAX
        connections_max = min(wanted, descriptors_max() - DESCRIPTORS_RESERVED)
        if connections_max < wanted:
            _log.warning(
                "at most %d connections, not %d: the process may open %d files (ulimit -n)",
                connections_max,
                wanted,
                descriptors_max(),
            )
        self._open = OpenConnections(connections_max, limits.connections_per_address)
        self.ports: dict[str, int] = {}
        """By listener."""

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._open)

    async def bind(self, listener: Listener) -> None:
        """Takes the listener's port, at each address of its host. Nobody is served before
        :meth:`serve`. Raises InvalidRequest for certificates that cannot be used, OSError."""
        certificates = Certificates(listener.tls_files, listener.title)
        addresses = await asyncio.get_running_loop().getaddrinfo(
            listener.host, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        port = listener.port
        for family, _, _, _, address in dict.fromkeys(addresses):
            bound = socket.create_server(
                (address[0], port, *address[2:]), family=family, backlog=_BACKLOG
            )
            bound.setblocking(False)
            port = bound.getsockname()[1]
            self._bound.append((listener, certificates, bound))
        self.ports[listener.name] = port

    def serve(self) -> None:
        """Begins to accept connections on every listener."""
        self._accepting = [
            asyncio.create_task(
                keep_running(
                    f"gateway-{listener.name}", partial(self._accept, listener, certificates, bound)
                )
            )
            for listener, certificates, bound in self._bound
        ]

    def refresh_certificates(self) -> None:
        """Takes changed certificates of all listeners. Reads files; in any thread."""
        for _, certificates, _ in self._bound:
            certificates.refresh()

    def stop(self) -> None:
        """Accepts no further connections."""
        for task in self._accepting:
            task.cancel()
        for _, _, bound in self._bound:
            asyncio.get_running_loop().call_soon(bound.close)  # behind the loop's own use of it

    async def close(self) -> None:
        """Ends every connection."""
        tasks = self._open.tasks()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._accepting, return_exceptions=True)
        self._executor.shutdown(wait=True)

    async def _accept(
        self, listener: Listener, certificates: Certificates, bound: socket.socket
    ) -> None:
        async def serve(opened: socket.socket, host: str) -> None:
            if (context := self._context()) is None:
                raise RuntimeError("no connection is accepted before there is a context")
            await self._serve(context, listener, certificates.context, opened, host)

        await accept_from(
            bound, self._open, _refusals, serve, is_ready=lambda: self._context() is not None
        )

    async def _serve(
        self,
        context: GatewayContext,
        listener: Listener,
        tls: ssl.SSLContext | None,
        opened: socket.socket,
        host: str,
    ) -> None:
        reader = asyncio.StreamReader()
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if task is None:
            raise RuntimeError("a connection is served by a task")
        shaken = await shake_hands(
            lambda: asyncio.StreamReaderProtocol(reader), opened, host, tls, _refusals
        )
        if shaken is None:
            return
        transport, protocol = shaken
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        authentication = (
            Authentication(listener.mechanisms, lambda: context.security, self._executor, host)
            if listener.has_sasl
            else None
        )
        connection = Connection(
            context,
            listener.name,
            self._large_frames,
            reader,
            writer,
            principal=subject_principal(writer.get_extra_info("peercert")) or ANONYMOUS,
            authentication=authentication,
            on_known=lambda: self._open.known(task),
        )
        try:
            with suppress(asyncio.CancelledError):
                await connection.serve()
        finally:
            writer.close()
