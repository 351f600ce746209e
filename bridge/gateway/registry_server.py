"""The HTTP server of the schema registry and the metrics, inside the gateway's event loop: with the
TLS, the principals and the limits that workers have."""

from __future__ import annotations

import json
from typing import Any, Final

from cellfeed.bridge.events.registry_http import CONTENT_TYPE
from cellfeed.store.errors import CellfeedError, Unauthenticated
from cellfeed.store.http.server.asgi import ANY_HOST, App, Receive, Scope, Send
from cellfeed.store.http.server.audited import answered
from cellfeed.store.http.server.callers import CALLER, CHALLENGE, Callers
from cellfeed.store.http.server.credentials import SignedTokens
from cellfeed.store.http.server.in_loop import InLoopServer
from cellfeed.store.http.server.listening import HttpListener
from cellfeed.store.http.server.metered import admitted
from cellfeed.store.security.audit import AuditLog
from cellfeed.store.security.authority import Authority
from cellfeed.store.security.quotas import Quotas

_OWNER: Final = "the schema registry"
_LIVE: Final = "/livez"
_METRICS: Final = "/metrics"


class RegistryServer(InLoopServer):
    """``await start()``, then it serves on ``port`` until ``await stop()``. ``authority`` is looked
    at by the gateway."""

    def __init__(
        self,
        app: App,
        listener: HttpListener,
        datastore: str,
        authority: Authority,
        signed: SignedTokens | None = None,
        audit: AuditLog | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self._callers = Callers(
            datastore, authority, required=listener.needs_credentials, signed=signed
        )
        super().__init__(guarded(app, self._callers, audit, quotas or Quotas()), listener, _OWNER)

    async def stop(self) -> None:
        """Waits for the requests that are being answered."""
        await super().stop()
        self._callers.close()


def guarded(app: App, callers: Callers, audit: AuditLog | None, quotas: Quotas) -> App:
    """The app for principals with a right to the datastore; its metrics for operators.
    ``/livez`` is open."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await app(scope, receive, send)
        if scope["path"] == _LIVE:
            return await _send(send, 200, b"live", b"text/plain")
        try:
            caller = scope[CALLER] = await callers.of(scope)
            if scope["path"] == _METRICS:
                caller.check_datastore("operate")
            else:
                caller.check_some()
            receive, send = admitted(quotas, scope, "registry", receive, send)
        except CellfeedError as error:
            status = error.http_status
            answered(audit, scope, "registry", status)
            content = json.dumps({"error_code": status, "message": str(error)}).encode()
            return await _send(send, status, content, CONTENT_TYPE)
        scope[ANY_HOST] = callers.required
        status = 0

        async def seen(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            return await app(scope, receive, seen)
        finally:
            answered(audit, scope, "registry", status)

    return answer


async def _send(send: Send, status: int, body: bytes, media_type: bytes) -> None:
    headers = [(b"content-type", media_type), (b"content-length", str(len(body)).encode())]
    if status == Unauthenticated.http_status:
        headers.append((b"www-authenticate", CHALLENGE))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
