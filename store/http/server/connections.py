"""Connections that neither send nor read: each costs one connection for a while, never more.

Every second the server looks over its connections (:meth:`Connection.cut_off_when_stalled`); a
timer per request would cost more than many a request. Cut off is: a request, head or body, that
sent nothing for ``SILENT_S``; an answer that its reader did not read for ``SILENT_S``. A connection
between two requests ends after ``KEEP_ALIVE_S``. A head has ``HEAD_BYTES_MAX`` and ``HEAD_S``,
however slowly its bytes come. A body has limits of its own
(:mod:`cellfeed.store.http.server.bodies`); an answer that came before the end of its request ends
the connection. Of too many one makes room for a new one
(:mod:`cellfeed.store.http.server.room`).

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

from cellfeed.store.errors import CellfeedError, HeadTooLarge, RequestTimedOut, UrlTooLong
from cellfeed.store.http.server.callers import SUBJECT
from cellfeed.store.http.server.direct import DirectRequests
from cellfeed.store.http.server.responses import last_answer
from cellfeed.store.http.server.room import one_too_many
from cellfeed.store.security.peer_limits import PeerLimits
from cellfeed.store.security.subject import subject_principal

SILENT_S: Final = 30.0
"""Longer than any healthy peer pauses within one request, also one that collects a stream slowly;
short enough to free the resources of a dead one."""

HEAD_BYTES_MAX: Final = 64 << 10
URL_BYTES_MAX: Final = 8 << 10
"""Of a request's head, and of its URL: a route has a few names, and fields are short."""

HEAD_S: Final = 10.0
"""From the first byte of a request to the end of its head."""

UNREAD_REST_S: Final = 5.0
"""How long the rest of a request may come behind its answer."""

KEEP_ALIVE_S: Final = 75
"""An idle connection is kept so long; clients that talk every minute keep theirs."""


class Connection(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with the limits of this module."""

    silent_s = SILENT_S

    def __init__(self, *args: Any, limits: PeerLimits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self.host = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._heard_at = self._since_s = time.monotonic()
        self._unread_since: float | None = None
        self._refusal: CellfeedError | None = None
        self._in_head = False
        self._head_bytes = 0
        """Received for the head, besides its first piece; and in its complete fields."""
        self._expecting = True
        self._between_messages = True
        self._fields_bytes = 0
        self._rest_since_s = 0.0
        self._waits = False
        self._kept: list[bytes] = []
        self.ends = False
        self._subject = subject_principal(transport.get_extra_info("peercert"))
        self._direct: DirectRequests | None = getattr(self.config.loaded_app, "direct", None)
        self._usual_heads = self._direct.heads(self._subject) if self._direct else None
        self.host = str((transport.get_extra_info("peername") or ("",))[0])
        everyone = cast("set[Connection]", self.connections)
        if (gone := one_too_many(self, everyone, self._limits)) is not None:
            gone.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._heard_at = time.monotonic()
        if self._waits:
            self._kept.append(data)
            self.flow.pause_reading()
        elif not self._takes(data):
            was_in_head = self._in_head
            super().data_received(data)
            if was_in_head and self._in_head:  # the parser keeps an unfinished field by itself
                self._head_bytes += len(data)
                if self._head_bytes > HEAD_BYTES_MAX:
                    self._refuse(_head_too_large())

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

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > URL_BYTES_MAX:
            self._refusal = UrlTooLong(
                f"the request's URL has more than {URL_BYTES_MAX} bytes, which is the most allowed"
            )
            raise self._refusal  # ends the parser, which has the refusal sent

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._fields_bytes += len(name) + len(value)
        if self._fields_bytes > HEAD_BYTES_MAX:
            self._refusal = _head_too_large()
            raise self._refusal

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        if self._refusal is not None:
            self._refuse(self._refusal)
        elif self.cycle is None or self.cycle.response_complete:
            super().send_400_response(msg)
        else:
            self.transport.abort()  # an answer is under way, and must not be mixed with another

    def _refuse(self, error: CellfeedError) -> None:
        """Answers a request that has not come to its end, and ends the connection."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(last_answer(error))
            self.transport.close()
        else:
            self.transport.abort()

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes, self._fields_bytes = True, 0, 0
        self._since_s = self._heard_at
        self._expecting = True
        self._between_messages = False
        super().on_message_begin()
        if self._subject is not None:
            cast("dict[str, Any]", self.scope)[SUBJECT] = self._subject

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
        if not (self.cycle is None or self.cycle.response_complete):
            self._since_s = now  # the answer before it is under way
        elif self._in_head and now - self._since_s > HEAD_S:
            self._refuse(
                RequestTimedOut(f"the request's head has been coming for more than {HEAD_S:g} s")
            )
            return True
        answered = self.cycle is not None and self.cycle.response_complete
        if answered and not self._between_messages and not self._in_head:
            self._rest_since_s = self._rest_since_s or now
            if now - self._rest_since_s > UNREAD_REST_S:
                self.transport.abort()
                return True
        else:
            self._rest_since_s = 0.0
        stalled = waiting_for_peer and now - self._heard_at > self.silent_s
        unread = self._unread_since is not None and now - self._unread_since > self.silent_s
        if not stalled and not unread:
            if self._idle() and now - self._heard_at > KEEP_ALIVE_S:
                self.transport.close()
            return False
        self.transport.abort()
        return True

    @property
    def lets_wait(self) -> bool:
        """Whether nothing is done for the peer: it is its turn."""
        return not self._waits and (self._expecting or self._idle())

    @property
    def waits_s(self) -> float:
        """For how long the connection has waited for its peer, or for the end of a request."""
        return time.monotonic() - (self._since_s if self._expecting else self._heard_at)

    def _idle(self) -> bool:
        """Between two requests. The server's own timer runs only behind answers of its own."""
        return (
            self._between_messages
            and not self._expecting
            and not self._waits
            and (self.cycle is None or bool(self.cycle.response_complete))
        )


def _head_too_large() -> HeadTooLarge:
    return HeadTooLarge(
        f"the request's head has more than {HEAD_BYTES_MAX} bytes, which is the most allowed"
    )
