"""Accepts the connections of a bound socket within the limits of
:mod:`cellfeed.store.security.open_connections`: for workers over TLS, and for gateways.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from cellfeed.store.limits import (
    ACCEPT_PAUSE_S,
    AUTHENTICATION_TIMEOUT_S,
    TLS_SHUTDOWN_TIMEOUT_S,
)
from cellfeed.store.security.limited_warnings import LimitedWarnings
from cellfeed.store.security.open_connections import OpenConnections

Protocol = TypeVar("Protocol", bound=asyncio.BaseProtocol)
Serve = Callable[[socket.socket, str], Coroutine[Any, Any, None]]
"""Serves a connection of an address until it ends, in a task of its own."""

_NOTHING_LEFT: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


async def accept_from(
    bound: socket.socket,
    connections: OpenConnections,
    refusals: LimitedWarnings,
    serve: Serve,
    *,
    is_ready: Callable[[], bool] = lambda: True,
) -> None:
    """Accepts until the socket is closed. Until the server is ready every connection is refused."""
    loop = asyncio.get_running_loop()
    while bound.fileno() >= 0:
        try:
            opened, address = await loop.sock_accept(bound)
        except OSError as error:
            if error.errno in _NOTHING_LEFT:
                refusals.warn("no connection can be accepted: %s", error)
                await asyncio.sleep(ACCEPT_PAUSE_S)
            continue  # otherwise the peer went while it was accepted
        host = str(address[0])
        if not is_ready() or not _has_room(connections, host, refusals):
            refusals.warn(
                "a connection from %s was refused: %d are open, %d of them from there",
                host,
                len(connections),
                connections.of_address(host),
            )
            opened.close()
            continue
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = asyncio.create_task(serve(opened, host))
        connections.begun(task, host)
        task.add_done_callback(connections.ended)
        # Where many wait to be accepted, those before them have their turn.
        await asyncio.sleep(0)


def _has_room(connections: OpenConnections, host: str, refusals: LimitedWarnings) -> bool:
    """Whether there is room for one more stranger of the address, or the oldest one made it."""
    if (stranger := connections.in_the_way(host)) is not None:
        task, address = stranger
        refusals.warn("a connection from %s was not let in soon enough for the next one", address)
        task.cancel()
        connections.known(task)
    return connections.has_room(host)


async def shake_hands(
    protocol: Callable[[], Protocol],
    opened: socket.socket,
    host: str,
    tls: ssl.SSLContext | None,
    refusals: LimitedWarnings,
) -> tuple[asyncio.Transport, Protocol] | None:
    """The transport of an accepted connection behind its TLS handshake, where there is ``tls``;
    None, with the socket closed, when the handshake failed. At most ``AUTHENTICATION_TIMEOUT_S``.
    """
    try:
        return await asyncio.get_running_loop().connect_accepted_socket(
            protocol,
            opened,
            ssl=tls,
            ssl_handshake_timeout=AUTHENTICATION_TIMEOUT_S if tls is not None else None,
            ssl_shutdown_timeout=TLS_SHUTDOWN_TIMEOUT_S if tls is not None else None,
        )
    except (OSError, TimeoutError) as error:
        refusals.warn("connection from %s: TLS has failed: %s", host, error)
        opened.close()
        return None
    except asyncio.CancelledError:
        opened.close()
        raise
