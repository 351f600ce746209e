"""One exchange of HTTP: its status, its duration, the bytes of its bodies, and headers that every
answer has."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from cellfeed.store.errors import Unauthenticated
from cellfeed.store.http.server.asgi import Receive, Scope, Send
from cellfeed.store.http.server.callers import CHALLENGE


class Exchange:
    """``receive`` and ``send``: the server's. ``headers``: of the answer, beside its own."""

    def __init__(
        self, receive: Receive, send: Send, headers: Sequence[tuple[bytes, bytes]]
    ) -> None:
        self._receive, self._send, self._headers = receive, send, headers
        self._began_s = time.perf_counter()
        self.status = 0
        """0 until the answer begins."""
        self.received = 0
        self.sent = 0

    async def receive(self) -> Any:
        """As the server's."""
        message = await self._receive()
        self.received += len(message.get("body", b""))
        return message

    async def send(self, message: Any) -> None:
        """As the server's."""
        self.sent += len(message.get("body", b""))
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message["headers"], *self._headers]
            if self.status == Unauthenticated.http_status:
                message["headers"].append((b"www-authenticate", CHALLENGE))
        await self._send(message)

    @property
    def seconds(self) -> float:
        """Since its head came."""
        return time.perf_counter() - self._began_s


def route_name(route: str, scope: Scope) -> str:
    """The route's name in the metrics: that of its handler, ``other`` where a path has none. So
    nobody outside makes new series."""
    if route != "read":
        return route
    return getattr(getattr(scope.get("route_handler"), "fn", None), "__name__", "other")
