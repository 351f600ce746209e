"""Connections that neither send nor read: each costs one connection for a while, never more.

Every second the server looks over its connections (:meth:`Connection.cut_off_when_stalled`); a
timer per request would cost more than many a request. Cut off is: a request, head or body, that
sent nothing for ``SILENT_S``; an answer that its reader did not read for ``SILENT_S``. A connection
between two requests ends after ``KEEP_ALIVE_S``. Beyond ``CONNECTIONS_MAX`` a new connection is
closed at once.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

SILENT_S: Final = 30.0
"""Longer than any healthy peer pauses within one request, also one that collects a stream slowly;
short enough to free what a dead one holds."""

KEEP_ALIVE_S: Final = 75
"""An idle connection is kept so long; clients that talk every minute keep theirs."""

CONNECTIONS_MAX: Final = 2_000
"""Each costs a file handle and some 20 KB; under the usual limit of 4,096 handles."""


class Connection(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with the limits of this module."""

    silent_s = SILENT_S

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._heard_at = time.monotonic()
        self._unread_since: float | None = None
        self._expecting = True
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._heard_at = time.monotonic()
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._expecting = True
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._expecting = False
        super().on_message_complete()

    def pause_writing(self) -> None:
        self._unread_since = time.monotonic()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._unread_since = None
        super().resume_writing()

    def cut_off_when_stalled(self, now: float) -> bool:
        """Closes the connection when its peer neither sends nor reads; whether it did."""
        # While the handler is busy with what came, reading is paused: then silence is ours, not the
        # peer's.
        waiting_for_peer = (
            self._expecting and not self.flow.read_paused and not (self.cycle and self.cycle.body)
        )
        stalled = waiting_for_peer and now - self._heard_at > self.silent_s
        unread = self._unread_since is not None and now - self._unread_since > self.silent_s
        if not stalled and not unread:
            return False
        self.transport.abort()
        return True


def cut_off_stalled(connections: set[Any], now: float) -> int:
    """Goes over a server's connections; how many were cut off."""
    return sum(
        cast("Connection", connection).cut_off_when_stalled(now) for connection in list(connections)
    )
