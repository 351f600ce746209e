"""Connections that neither send nor read: each costs one connection for a while, never more.

Every second the server looks over its connections (:meth:`Connection.cut_off_when_stalled`); a
timer per request would cost more than many a request. Cut off is: a request, head or body, that
sent nothing for ``SILENT_S``; an answer that its reader did not read for ``SILENT_S``. A connection
between two requests ends after ``KEEP_ALIVE_S``. Beyond ``CONNECTIONS_MAX`` a new connection is
closed at once.

The usual request is answered without the server's layers
(:mod:`cellfeed.store.http.server.direct`), and only where their parser stands between two messages
and no answer is under way. So neither reader ever sees a part of the other one's bytes. Bytes that
come while such a request waits are kept, and reading stops.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cellfeed.store.http.server.app import WorkerApp

SILENT_S: Final = 30.0
"""Longer than any healthy peer pauses within one request, also one that collects a stream slowly;
short enough to free the resources of a dead one."""

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
        self._between_messages = True
        self._waits = False
        self._kept: list[bytes] = []
        self.ends = False
        app = self.config.loaded_app
        self._direct = app.direct if isinstance(app, WorkerApp) else None
        self._usual_heads = self._direct.heads() if self._direct is not None else None
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._heard_at = time.monotonic()
        if self._waits:
            self._kept.append(data)
            self.flow.pause_reading()
        elif not self._takes(data):
            super().data_received(data)

    def _takes(self, data: bytes) -> bool:
        if (
            self._direct is None
            or self._usual_heads is None
            or not self._between_messages
            or (self.cycle is not None and not self.cycle.response_complete)
            or self.flow.write_paused
            or self.transport.is_closing()
            or not self._direct.take(data, self._usual_heads, self)
        ):
            return False
        self._waits = True
        self._expecting = False
        self._unset_keepalive_if_required()
        return True

    def answered(self, answer: bytes) -> None:
        """Sends the answer to the waiting request, then reads the bytes behind it."""
        self._waits = False
        if self.transport.is_closing():
            return
        self.transport.write(answer)
        self._heard_at = time.monotonic()  # it is the peer's turn from here on
        if self.ends:
            self.transport.close()
        elif self._kept:
            data = b"".join(self._kept)
            self._kept.clear()
            self.flow.resume_reading()
            self.data_received(data)

    def shutdown(self) -> None:
        """The server ends: a request that waits is answered first."""
        if self._waits:
            self.ends = True
        else:
            super().shutdown()

    def on_message_begin(self) -> None:
        self._expecting = True
        self._between_messages = False
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._expecting = False
        self._between_messages = True
        super().on_message_complete()

    def pause_writing(self) -> None:
        self._unread_since = time.monotonic()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._unread_since = None
        super().resume_writing()

    def cut_off_when_stalled(self, now: float) -> bool:
        """Cuts the connection off when its peer neither sends nor reads; whether it did. Closes it
        when it was idle for too long."""
        # While the handler is busy with the bytes received, reading is paused: then silence is
        # ours, not the peer's.
        waiting_for_peer = (
            self._expecting and not self.flow.read_paused and not (self.cycle and self.cycle.body)
        )
        stalled = waiting_for_peer and now - self._heard_at > self.silent_s
        unread = self._unread_since is not None and now - self._unread_since > self.silent_s
        if not stalled and not unread:
            if self._idle() and now - self._heard_at > KEEP_ALIVE_S:
                self.transport.close()
            return False
        self.transport.abort()
        return True

    def _idle(self) -> bool:
        """Between two requests. The server's own timer runs only behind answers of its own."""
        return (
            self._between_messages
            and not self._expecting
            and not self._waits
            and (self.cycle is None or bool(self.cycle.response_complete))
        )


def cut_off_stalled(connections: set[Any], now: float) -> int:
    """Goes over a server's connections; how many were cut off."""
    return sum(
        cast("Connection", connection).cut_off_when_stalled(now) for connection in list(connections)
    )
