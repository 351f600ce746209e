"""The HTTP server of the schema registry and the metrics, inside the gateway's event loop: with the
TLS, the principals and the limits that workers have."""

from __future__ import annotations

import asyncio
import json
from typing import Final

from cellfeed.bridge.events.registry_http import CONTENT_TYPE
from cellfeed.store.errors import CellfeedError, InvalidRequest, StorageUnavailable, Unauthenticated
from cellfeed.store.http.server.asgi import ANY_HOST, App, Receive, Scope, Send
from cellfeed.store.http.server.callers import CHALLENGE, Callers
from cellfeed.store.http.server.credentials import SignedTokens
from cellfeed.store.http.server.listening import HttpListener, listen
from cellfeed.store.http.server.serving import HttpServer
from cellfeed.store.security.authority import Authority
from cellfeed.store.security.certificates import Certificates

_OWNER: Final = "the schema registry"
_LIVE: Final = "/livez"
_METRICS: Final = "/metrics"


class RegistryServer:
    """``await start()``, then it serves on ``port`` until ``await stop()``. ``authority`` is looked
    at by the gateway. Raises ProtectData for a listener beyond loopback without TLS and
    authentication, InvalidRequest for certificates that cannot be used."""

    def __init__(
        self,
        app: App,
        listener: HttpListener,
        datastore: str,
        authority: Authority,
        signed: SignedTokens | None = None,
    ) -> None:
        self._listener = listener
        self.certificates = Certificates(listener.tls, _OWNER)
        self._callers = Callers(
            datastore, authority, required=listener.needs_credentials, signed=signed
        )
        self._app = guarded(app, self._callers)
        self._server: HttpServer | None = None
        self._task: asyncio.Task[None] | None = None
        self.port = listener.port

    async def start(self) -> None:
        """Raises InvalidRequest when the port cannot be bound."""
        try:
            sockets = await asyncio.to_thread(listen, self._listener, _OWNER)
        except StorageUnavailable as error:
            raise InvalidRequest(f"the schema registry's port cannot be bound: {error}") from error
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
        self._callers.close()


def guarded(app: App, callers: Callers) -> App:
    """The app for principals with a right to the datastore; its metrics for operators.
    ``/livez`` is open."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await app(scope, receive, send)
        if scope["path"] == _LIVE:
            return await _send(send, 200, b"live", b"text/plain")
        try:
            caller = await callers.of(scope)
            if scope["path"] == _METRICS:
                caller.check_datastore("operate")
            else:
                caller.check_some()
        except CellfeedError as error:
            status = error.http_status
            content = json.dumps({"error_code": status, "message": str(error)}).encode()
            return await _send(send, status, content, CONTENT_TYPE)
        scope[ANY_HOST] = callers.required
        return await app(scope, receive, send)

    return answer


async def _send(send: Send, status: int, body: bytes, media_type: bytes) -> None:
    headers = [(b"content-type", media_type), (b"content-length", str(len(body)).encode())]
    if status == Unauthenticated.http_status:
        headers.append((b"www-authenticate", CHALLENGE))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
