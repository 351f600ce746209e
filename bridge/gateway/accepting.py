"""Accepts the connections of clients: binds the listeners, and keeps the number of connections
within limits (:mod:`cellfeed.store.security.open_connections`).
"""

from __future__ import annotations

import asyncio
import errno
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
from cellfeed.bridge.gateway.limits import (
    CONNECTIONS_MAX,
    DESCRIPTORS_RESERVED,
)
from cellfeed.bridge.gateway.security.authentication import Authentication
from cellfeed.bridge.gateway.security.listeners import Listener
from cellfeed.bridge.gateway.wire.large_frames import LargeFrames
from cellfeed.store.background import keep_running
from cellfeed.store.descriptors import descriptors_max
from cellfeed.store.limits import (
    ACCEPT_PAUSE_S,
    AUTHENTICATION_THREADS,
    AUTHENTICATION_TIMEOUT_S,
    PEER_WARNINGS_MAX,
    PEER_WARNINGS_S,
    TLS_SHUTDOWN_TIMEOUT_S,
)
from cellfeed.store.security.certificates import Certificates
from cellfeed.store.security.limited_warnings import LimitedWarnings
from cellfeed.store.security.open_connections import OpenConnections
from cellfeed.store.security.subject import subject_principal
from cellfeed.store.security.users import ANONYMOUS

_log = logging.getLogger("cellfeed.gateway")
_refusals = LimitedWarnings(
    _log, "connections refused or not let in", PEER_WARNINGS_MAX, PEER_WARNINGS_S
)
_BACKLOG: Final = 1_024
_NOTHING_LEFT: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """See the module. ``context``: None until the gateway is ready to serve. Used on the event
    loop."""

    def __init__(self, context: Callable[[], GatewayContext | None]) -> None:
        self._context = context
        self._executor = ThreadPoolExecutor(
            AUTHENTICATION_THREADS, thread_name_prefix="gateway-passwords"
        )
        self._bound: list[tuple[Listener, Certificates, socket.socket]] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._large_frames = LargeFrames()
        connections_max = min(CONNECTIONS_MAX, descriptors_max() - DESCRIPTORS_RESERVED)
        if connections_max < CONNECTIONS_MAX:
            _log.warning(
                "at most %d connections, not %d: the process may open %d files (ulimit -n)",
                connections_max,
                CONNECTIONS_MAX,
                descriptors_max(),
            )
        self._open = OpenConnections(connections_max)
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
        loop = asyncio.get_running_loop()
        while bound.fileno() >= 0:
            try:
                opened, address = await loop.sock_accept(bound)
            except OSError as error:
                if error.errno in _NOTHING_LEFT:
                    _refusals.warn("no connection can be accepted: %s", error)
                    await asyncio.sleep(ACCEPT_PAUSE_S)
                continue  # otherwise the peer went while it was accepted
            host = str(address[0])
            context = self._context()
            if context is None or not self._has_room(host):
                _refusals.warn(
                    "a connection from %s was refused: %d are open, %d of them from there",
                    host,
                    len(self._open),
                    self._open.of_address(host),
                )
                opened.close()
                continue
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = asyncio.create_task(
                self._serve(context, listener, certificates.context, opened, host)
            )
            self._open.begun(task, host)
            task.add_done_callback(self._open.ended)
            # Where many wait to be accepted, those before them have their turn.
            await asyncio.sleep(0)

    def _has_room(self, host: str) -> bool:
        """Whether there is room for one more stranger of the address, or the oldest one made it."""
        if (stranger := self._open.in_the_way(host)) is not None:
            task, address = stranger
            _refusals.warn(
                "a connection from %s was not let in soon enough for the next one", address
            )
            task.cancel()
            self._open.known(task)
        return self._open.has_room(host)

    async def _serve(
        self,
        context: GatewayContext,
        listener: Listener,
        tls: ssl.SSLContext | None,
        opened: socket.socket,
        host: str,
    ) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if task is None:
            raise RuntimeError("a connection is served by a task")
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                opened,
                ssl=tls,
                ssl_handshake_timeout=AUTHENTICATION_TIMEOUT_S if tls is not None else None,
                ssl_shutdown_timeout=TLS_SHUTDOWN_TIMEOUT_S if tls is not None else None,
            )
        except (OSError, TimeoutError) as error:
            _refusals.warn("connection from %s: TLS has failed: %s", host, error)
            opened.close()
            return
        except asyncio.CancelledError:
            opened.close()
            raise
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
