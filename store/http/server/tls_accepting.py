"""Accepts connections over TLS.

A connection counts from its first packet on. Peers in their handshake have places of their own
(:mod:`cellfeed.store.security.open_connections`), so a silent one keeps nobody out; a handshake has
``AUTHENTICATION_TIMEOUT_S``. New handshakes have the certificates that were read last.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from cellfeed.store.background import keep_running
from cellfeed.store.limits import (
    ACCEPT_PAUSE_S,
    AUTHENTICATION_TIMEOUT_S,
    PEER_WARNINGS_MAX,
    PEER_WARNINGS_S,
    STRANGERS_MAX,
    TLS_SHUTDOWN_TIMEOUT_S,
)
from cellfeed.store.security.certificates import Certificates
from cellfeed.store.security.limited_warnings import LimitedWarnings
from cellfeed.store.security.open_connections import OpenConnections

_NOTHING_LEFT: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_refusals = LimitedWarnings(
    logging.getLogger("cellfeed.security"),
    "connections refused or not let in",
    PEER_WARNINGS_MAX,
    PEER_WARNINGS_S,
)


class TlsAcceptor:
    """``protocol`` makes the one that a connection gets behind its handshake. Used on the event
    loop."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        certificates: Certificates,
        protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        self._sockets = sockets
        self._certificates = certificates
        self._protocol = protocol
        self._open = OpenConnections(2 * STRANGERS_MAX)
        self._accepting: list[asyncio.Task[None]] = []

    def serve(self) -> None:
        for bound in self._sockets:
            bound.setblocking(False)
        self._accepting = [
            asyncio.create_task(keep_running("http-tls", partial(self._accept, bound)))
            for bound in self._sockets
        ]

    async def close(self) -> None:
        """Accepts nothing more, and ends the handshakes. Connections stay."""
        tasks = [*self._accepting, *self._open.tasks()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, bound: socket.socket) -> None:
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
            if (stranger := self._open.in_the_way(host)) is not None:
                task, there = stranger
                _refusals.warn(
                    "a connection from %s was not let in soon enough for the next one", there
                )
                task.cancel()
                self._open.known(task)
            if not self._open.has_room(host):
                _refusals.warn("a connection from %s was refused: too many are open", host)
                opened.close()
                continue
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = asyncio.create_task(self._let_in(opened, host))
            self._open.begun(task, host)
            task.add_done_callback(self._open.ended)
            await asyncio.sleep(0)  # where many wait to be accepted, those before have their turn

    async def _let_in(self, opened: socket.socket, host: str) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol,
                opened,
                ssl=self._certificates.context,
                ssl_handshake_timeout=AUTHENTICATION_TIMEOUT_S,
                ssl_shutdown_timeout=TLS_SHUTDOWN_TIMEOUT_S,
            )
        except (OSError, TimeoutError) as error:
            _refusals.warn("connection from %s: TLS has failed: %s", host, error)
            opened.close()
        except asyncio.CancelledError:
            opened.close()
            raise
