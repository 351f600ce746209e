"""The route that wakes followers on other machines: an answer of NDJSON, until its reader leaves.

A follower connects to each worker, by the TLS and the credentials of the worker's listener. The
worker sends it a line after commits. One line waits for each follower; later commits join it. So a
slow or stopped follower keeps one bounded line in memory, and no put waits for anybody.

The worker also listens to the datagrams of its machine while a follower is connected, and passes
them on. So commits of programs that write in process wake followers elsewhere, too.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final
from uuid import uuid4

import msgspec

from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError, NotFound, Overloaded
from cellfeed.store.http.server.asgi import Receive, Scope, Send
from cellfeed.store.http.server.bodies import read_body
from cellfeed.store.http.server.callers import Callers, caller_of
from cellfeed.store.http.server.documents import message_from
from cellfeed.store.http.server.responses import media_type_of, start_stream
from cellfeed.store.http.server.wakeup_metrics import WakeupMetrics
from cellfeed.store.http.wakeup_messages import WakeupLine, WakeupsMessage, line_of
from cellfeed.store.wakeups.addresses import LIFETIME_S, Entry, WorkerAddress, here
from cellfeed.store.wakeups.datagrams import Listener
from cellfeed.store.wakeups.hints import Hint

FOLLOWERS_MAX: Final = 256
"""Followers woken by one worker, some 10 KiB each. One more is refused as ``overloaded``: it
polls."""

LINES_PER_S_MAX: Final = 5_000
"""Lines a second to all followers together: with many followers each gets fewer, larger ones."""

PAUSE_MIN_S: Final = 0.001
"""Between two lines to one follower, in seconds: commits of a busy moment share a line."""

HEARTBEAT_S: Final = 2.0
"""Longest silence, in seconds. A follower that hears nothing for three of them connects again."""

AGE_MAX_S: Final = 3_600.0
"""A connection ends after about so long, in seconds, and its follower makes a new one: by the
certificates and rights of that moment."""

BODY_BYTES_MAX: Final = 4096

RENEW_S: Final = LIFETIME_S / 6

_encode_lines: Final = msgspec.json.Encoder().encode_lines


class _Follower:
    """One connection."""

    def __init__(self) -> None:
        self.waiting = Hint()
        self.moved = asyncio.Event()


class WakeupRoute:
    """Handler of ``POST /v1/{datastore}/wakeups``, as bare ASGI, on one event loop. ``closing`` is
    set when the worker is to end."""

    def __init__(self, datastore: Datastore, closing: asyncio.Event, callers: Callers) -> None:
        self._datastore = datastore
        self._closing = closing
        self._callers = callers
        self.worker = uuid4().hex
        """The identity of this worker: another one after each start."""
        self.metrics = WakeupMetrics()
        self._followers: set[_Follower] = set()
        self._relay: Listener | None = None
        self._lock = threading.Lock()
        self._new = Hint()
        self._is_due = False
        self._loop: asyncio.AbstractEventLoop | None = None

    # --- what happened ----------------------------------------------------------------------------

    def report(self, ends: Mapping[int, int]) -> None:
        """Wakes the followers: in any thread, without waiting. ``ends``: as
        :meth:`cellfeed.store.datastore.Datastore.wake_beyond`."""
        loop = self._loop
        if loop is None or not self._followers:
            return
        with self._lock:
            self._new.add(ends, looks=not ends)
            if self._is_due:
                return
            self._is_due = True
        with suppress(RuntimeError):  # the loop has ended, and every connection with it
            loop.call_soon_threadsafe(self._spread)

    def _spread(self) -> None:
        with self._lock:
            new, self._new, self._is_due = self._new, Hint(), False
        for follower in self._followers:
            self.metrics.merged += bool(follower.waiting)
            follower.waiting.merge(new)
            follower.moved.set()

    def _relayed(self) -> None:
        if self._relay is not None:
            self._relay.drain()
            subjects, self._relay.pokes = self._relay.pokes, set()
            with self._lock:
                self._new.add({}, looks=not subjects, subjects=subjects)
            self._spread()

    # --- the address ------------------------------------------------------------------------------

    async def keep_address(self, url: str) -> None:
        """Keeps the worker's address in the state table, and the relay's while there is one; until
        it is cancelled."""
        self._loop = asyncio.get_running_loop()
        self._datastore.wake_beyond(self.report)
        entry = Entry(self._datastore.state, f"worker-{self.worker}")
        try:
            while True:
                with suppress(CellfeedError):  # the storage is away: again in a moment
                    await asyncio.to_thread(self._write, entry, url)
                    await self._keep_relay()
                await asyncio.sleep(RENEW_S)
        finally:
            await self._end_relay()
            with suppress(CellfeedError):
                entry.remove()

    def _write(self, entry: Entry, url: str) -> None:
        expires_at_us = self._datastore.state.now_us() + int(LIFETIME_S * 1e6)
        entry.write(WorkerAddress(url, self.worker, here(), expires_at_us))

    async def _keep_relay(self) -> None:
        if not self._followers:
            await self._end_relay()
        elif self._relay is not None:
            await asyncio.to_thread(self._relay.renew)
        else:
            state, name = self._datastore.state, f"relay-{self.worker}"
            self._relay = await asyncio.to_thread(Listener, state, name, relays=True)
            asyncio.get_running_loop().add_reader(self._relay.sock.fileno(), self._relayed)

    async def _end_relay(self) -> None:
        relay, self._relay = self._relay, None
        if relay is not None:
            asyncio.get_running_loop().remove_reader(relay.sock.fileno())
            await asyncio.to_thread(relay.close)

    # --- one follower -----------------------------------------------------------------------------

    async def follow(self, scope: Scope, receive: Receive, send: Send) -> None:
        """200 with lines, or the error's own status."""
        media_type = media_type_of(scope)
        content = await read_body(scope, receive, BODY_BYTES_MAX)
        meant = message_from(content, media_type, WakeupsMessage).worker
        read = self._callers.watched(caller_of(scope), lambda each: each.check_some())
        with read as watched, self._counted(meant) as follower:
            await start_stream(send)
            ends = [
                asyncio.ensure_future(receive()),  # the request is whole: the peer is gone
                asyncio.ensure_future(self._closing.wait()),
                asyncio.ensure_future(watched.ended.wait()),
            ]
            for end in ends:
                end.add_done_callback(lambda _: follower.moved.set())
            try:
                await self._stream(follower, ends, send)
            finally:
                for end in ends:
                    end.cancel()

    async def _stream(
        self, follower: _Follower, ends: Sequence[asyncio.Future[Any]], send: Send
    ) -> None:
        await _write(send, WakeupLine(worker=self.worker, looks=True))
        silent_since_s = time.monotonic()
        ends_at_s = silent_since_s + AGE_MAX_S * random.uniform(0.75, 1.25)
        while not any(end.done() for end in ends) and silent_since_s < ends_at_s:
            with suppress(TimeoutError):
                async with asyncio.timeout(silent_since_s + HEARTBEAT_S - time.monotonic()):
                    await follower.moved.wait()
            follower.moved.clear()
            hint, follower.waiting = follower.waiting, Hint()
            if hint or time.monotonic() - silent_since_s >= HEARTBEAT_S:
                self.metrics.sent += bool(hint)
                await _write(send, line_of(hint))
                silent_since_s = time.monotonic()
                await asyncio.sleep(max(PAUSE_MIN_S, len(self._followers) / LINES_PER_S_MAX))
        await send({"type": "http.response.body", "body": b""})

    @contextmanager
    def _counted(self, meant: str) -> Iterator[_Follower]:
        if self._loop is None:
            raise NotFound("this worker wakes no followers on other hosts: it has no `advertised`")
        if meant != self.worker:
            raise NotFound("another worker was meant: the one at this address was started again")
        if len(self._followers) >= FOLLOWERS_MAX:
            self.metrics.refused += 1
            raise Overloaded(
                f"{FOLLOWERS_MAX} followers are woken by this worker: that is the most"
            )
        follower = _Follower()
        self._followers.add(follower)
        self.metrics.followers = len(self._followers)
        try:
            yield follower
        finally:
            self._followers.discard(follower)
            self.metrics.followers = len(self._followers)


async def _write(send: Send, line: WakeupLine) -> None:
    content = _encode_lines([line])
    await send({"type": "http.response.body", "body": content, "more_body": True})
