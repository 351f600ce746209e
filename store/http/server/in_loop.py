"""An HTTP server inside the event loop of another program."""

from __future__ import annotations

import asyncio

from cellfeed.store.errors import InvalidRequest, StorageUnavailable
from cellfeed.store.http.server.asgi import App
from cellfeed.store.http.server.listening import HttpListener, listen
from cellfeed.store.http.server.serving import HttpServer
from cellfeed.store.security.certificates import Certificates


class InLoopServer:
    """``await start()``, then it serves on ``port`` until ``await stop()``. ``owner`` names it in
    errors. Raises InvalidRequest for certificates that cannot be used."""

    def __init__(self, app: App, listener: HttpListener, owner: str) -> None:
        self._app = app
        self._listener = listener
        self._owner = owner
        self.certificates = Certificates(listener.tls, owner)
        self._server: HttpServer | None = None
        self._task: asyncio.Task[None] | None = None
        self.port = listener.port

    async def start(self) -> None:
        """Raises InvalidRequest when the port cannot be bound, ProtectData for a listener beyond
        loopback without TLS and authentication."""
        try:
            sockets = await asyncio.to_thread(listen, self._listener, self._owner)
        except StorageUnavailable as error:
            raise InvalidRequest(f"{self._owner}'s port cannot be bound: {error}") from error
        self.port = sockets[0].getsockname()[1]
        started = asyncio.Event()
        self._server = HttpServer(
            self._app, sockets, self.certificates, lifespan=False, on_started=started.set
        )
        self._task = asyncio.create_task(self._server.serve())
        starting = asyncio.ensure_future(started.wait())
        await asyncio.wait({starting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        starting.cancel()
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """Waits for the requests that are being answered."""
        if self._server is not None:
            self._server.should_exit = True
        if self._task is not None:
            await self._task
