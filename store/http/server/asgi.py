"""The few ASGI shapes that the worker uses."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

from cellfeed.store.errors import InvalidRequest

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

_LOOPBACK_NAME: Final = re.compile(
    r"localhost|\[::1\]|127\.\d{1,3}\.\d{1,3}\.\d{1,3}", re.IGNORECASE
)


ANY_HOST: Final = "cellfeed.any_host"
"""Key of a request's scope: its credentials were checked, so it may name any host."""


class PeerGone(Exception):
    """The peer closed the connection, or was cut off, before its request was whole. There is nobody
    to answer."""


def header(scope: Scope, name: bytes) -> bytes:
    """A request header, empty when it is not there; ``name`` in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return b""


def refuse_foreign_host(scope: Scope) -> None:
    """Raises InvalidRequest when the Host header is not a loopback name: a web page that points its
    own name here must not read cells."""
    host = header(scope, b"host")
    if not is_loopback(host) and not scope.get(ANY_HOST):
        raise InvalidRequest(
            f"Host {ascii(host.decode('latin-1'))[:80]} is not a loopback address; this worker"
            " answers on loopback only"
        )


def is_loopback(host: bytes) -> bool:
    """Whether a Host header is a loopback name, or empty."""
    text = host.decode("latin-1")
    name = text.rpartition(":")[0] if not text.endswith("]") and ":" in text else text
    return not text or _LOOPBACK_NAME.fullmatch(name) is not None
