"""Accepts connections over TLS.

A connection counts from its first packet on. Peers in their handshake have places of their own
(:mod:`cellfeed.store.security.open_connections`), so a silent one keeps nobody out; a handshake has
``AUTHENTICATION_TIMEOUT_S``. New handshakes have the certificates that were read last.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial

from cellfeed.store.background import keep_running
from cellfeed.store.limits import (
    CONNECTIONS_PER_ADDRESS_MAX,
    PEER_WARNINGS_MAX,
    PEER_WARNINGS_S,
    STRANGERS_MAX,
)
from cellfeed.store.security.accepting import accept_from, shake_hands
from cellfeed.store.security.certificates import Certificates
from cellfeed.store.security.limited_warnings import LimitedWarnings
from cellfeed.store.security.open_connections import OpenConnections

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
        per_address_max: int = CONNECTIONS_PER_ADDRESS_MAX,
    ) -> None:
        self._sockets = sockets
        self._certificates = certificates
        self._protocol = protocol
        self._open = OpenConnections(2 * STRANGERS_MAX, per_address_max)
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
        await accept_from(bound, self._open, _refusals, self._let_in)

    async def _let_in(self, opened: socket.socket, host: str) -> None:
        await shake_hands(self._protocol, opened, host, self._certificates.context, _refusals)
