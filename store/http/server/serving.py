"""An HTTP server: an ASGI application behind its listener, with the limits of
:mod:`cellfeed.store.http.server.connections`. Workers and the gateways' registries are such
servers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Final, cast

import uvicorn

from cellfeed.store.background import keep_running
from cellfeed.store.http.server.asgi import App
from cellfeed.store.http.server.bodies import BODIES
from cellfeed.store.http.server.connections import KEEP_ALIVE_S, Connection
from cellfeed.store.http.server.listening import BACKLOG
from cellfeed.store.http.server.tls_accepting import TlsAcceptor
from cellfeed.store.limits import CERTIFICATES_LOOK_S, PUT_TIMEOUT_S
from cellfeed.store.progress import Watch
from cellfeed.store.security.certificates import Certificates
from cellfeed.store.security.peer_limits import PeerLimits

_log: Final = logging.getLogger("cellfeed.http")


class HttpServer(uvicorn.Server):
    """Serves until ``stops`` says so, or ``should_exit`` is set. ``loops`` run meanwhile, by their
    names; ``watch``: of the event loop. Signals are left to the program."""

    def __init__(
        self,
        app: App,
        sockets: Sequence[socket.socket],
        certificates: Certificates,
        *,
        lifespan: bool,
        stops: Callable[[], bool] = lambda: False,
        on_started: Callable[[], object] = lambda: None,
        on_closing: Callable[[], object] = lambda: None,
        loops: Mapping[str, Callable[[], Awaitable[None]]] | None = None,
        watch: Watch | None = None,
        limits: PeerLimits | None = None,
    ) -> None:
        limits = limits or PeerLimits()
        self._connection = partial(Connection, limits=limits)
        super().__init__(
            uvicorn.Config(
                app,
                http=cast("type[Connection]", self._connection),
                ws="none",
                proxy_headers=False,  # no header may rename a peer
                loop="auto",
                lifespan="on" if lifespan else "off",
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                # A put is answered within PUT_TIMEOUT_S in any case; one second more to send the
                # answer.
                timeout_graceful_shutdown=int(PUT_TIMEOUT_S) + 1,
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
            )
        )
        self._sockets = list(sockets)
        self._certificates = certificates
        self._stops = stops
        self._on_started = on_started
        self._on_closing = on_closing
        self._loops = dict(loops or {})
        self._watch = watch
        self._running: list[asyncio.Task[None]] = []
        self._acceptor: TlsAcceptor | None = None
        self._looked_at = time.monotonic()
        self._limits = limits

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Until it is stopped; the sockets are closed then."""
        await super().serve(self._sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        has_tls = self._certificates.context is not None
        await super().startup([] if has_tls else self._sockets)
        if has_tls:
            self._acceptor = TlsAcceptor(
                self._sockets,
                self._certificates,
                self._protocol,
                self._limits.connections_per_address,
            )
            self._acceptor.serve()
            self._loops["http-certificates"] = self._follow_certificates
        self._running = [
            asyncio.create_task(keep_running(name, run)) for name, run in self._loops.items()
        ]
        self._on_started()

    async def on_tick(self, counter: int) -> bool:
        now = time.monotonic()
        if self._watch is not None:
            self._watch.moved()
        if now - self._looked_at >= 1:
            self._looked_at = now
            BODIES.end_overdue(now)
            everyone = [
                each for each in self.server_state.connections if isinstance(each, Connection)
            ]
            if cut := sum(each.cut_off_when_stalled(now) for each in everyone):
                _log.warning("cut off %d connections whose peer neither sent nor read", cut)
        return await super().on_tick(counter) or self._stops()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self._running:
            task.cancel()
        if self._acceptor is not None:
            await self._acceptor.close()
        self._on_closing()
        await super().shutdown(self._sockets)
        await asyncio.gather(*self._running, return_exceptions=True)
        if self._watch is not None:
            self._watch.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals belong to the program."""
        yield

    def _protocol(self) -> asyncio.Protocol:
        return self._connection(
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            _loop=None,
        )

    async def _follow_certificates(self) -> None:
        while True:
            await asyncio.sleep(CERTIFICATES_LOOK_S)
            await asyncio.to_thread(self._certificates.refresh)
