"""Where an HTTP server listens, and with which protection."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final

from cellfeed.store.errors import InvalidRequest, ProtectData, StorageUnavailable
from cellfeed.store.security.certificates import TlsFiles
from cellfeed.store.security.loopback import is_loopback

BACKLOG: Final = 512
"""Connections the kernel keeps for us before they are accepted: a burst of clients that start
together."""


@dataclass(frozen=True)
class HttpListener:
    """``port`` 0: one that the kernel chooses. ``authentication``: whether every request needs
    credentials; None: beyond loopback alone."""

    host: str = "127.0.0.1"
    port: int = 0
    tls: TlsFiles | None = None
    authentication: bool | None = None

    @property
    def needs_credentials(self) -> bool:
        if self.authentication is None:
            return not is_loopback(self.host)
        return self.authentication


def check_http_listener(listener: HttpListener, owner: str) -> None:
    """Raises ProtectData for an address beyond loopback without TLS and authentication. ``owner``
    names the listener."""
    if is_loopback(listener.host):
        return
    if listener.tls is None or not listener.needs_credentials:
        raise ProtectData(
            f"{owner}: host {listener.host!r} is not loopback, and without TLS and authentication"
            " HTTP would show every cell to anybody: give tls with certificate and key, and leave"
            " authentication on"
        )


def listen(listener: HttpListener, owner: str) -> list[socket.socket]:
    """Sockets at every address of the host, all of one port. Raises StorageUnavailable;
    ProtectData where a name for loopback is another address on this machine."""
    check_http_listener(listener, owner)
    host, port = listener.host, listener.port
    bound: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            if is_loopback(host) and not is_loopback(str(address[0])):
                raise ProtectData(
                    f"{owner}: host {host!r} is {address[0]} on this machine, which is not loopback"
                )
            at = (address[0], port or (bound[0].getsockname()[1] if bound else 0), *address[2:])
            bound.append(socket.create_server(at, family=family, backlog=BACKLOG))
            # Accepted sockets inherit it. Without it an answer of two packets waits for the peer's
            # delayed acknowledgement, 40 ms; asyncio sets it only where the protocol is named.
            bound[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        for each in bound:
            each.close()
        raise StorageUnavailable(f"{owner} cannot listen on {host}:{port}: {error}") from error
    except ProtectData:
        for each in bound:
            each.close()
        raise
    if not bound:
        raise InvalidRequest(f"{owner}: host {host!r} has no address")
    return bound
