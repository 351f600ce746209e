"""Serves the console until it is to stop: on loopback, or with TLS and a log-in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Final, cast

from cellfeed.assembly.datastore import Opened
from cellfeed.assembly.issuers import issued_tokens
from cellfeed.config.http import http_listener
from cellfeed.config.model import ConsoleConfig
from cellfeed.console.app import console_app
from cellfeed.console.door import Cookies, Door
from cellfeed.console.query.tables import SqlTables
from cellfeed.console.sessions import Sessions
from cellfeed.status.instance_status import InstanceStatus
from cellfeed.status.looks import Looks
from cellfeed.store.background import keep_running
from cellfeed.store.http.server.asgi import App
from cellfeed.store.http.server.callers import Callers
from cellfeed.store.http.server.in_loop import InLoopServer
from cellfeed.store.http.server.listening import check_http_listener
from cellfeed.store.http.server.worker import StopSignal
from cellfeed.store.security.audit import AuditLog
from cellfeed.store.security.authority import Authority

_STOP_LOOK_S: Final = 0.1


def run_console(
    instance: Opened,
    directory: Path,
    read: Callable[[], InstanceStatus],
    console: ConsoleConfig,
    port: int,
    stop: StopSignal,
    on_started: Callable[[int], None],
    audit: AuditLog | None = None,
) -> None:
    """``read``: reads the status once. ``on_started`` gets the port. Raises ProtectData for a host
    beyond loopback without TLS and a log-in, InvalidRequest when the port cannot be bound."""
    datastore = instance.datastore
    listener = http_listener(console.host, port, console.tls, console.authentication)
    check_http_listener(listener, "the console")
    authority = Authority(datastore.state)
    authority.look()
    callers = Callers(
        datastore.name,
        authority,
        required=listener.needs_credentials,
        signed=issued_tokens(instance.config),
    )
    cookies = _cookies(f"{datastore.history_id}/{console.name}", secure=listener.tls is not None)
    door = Door(callers, Sessions(callers), audit, cookies)
    provider = None
    if console.oidc is not None:
        from cellfeed.console.oidc import Provider  # loads libraries of an extra

        issuer = next(e for e in instance.config.issuers if e.issuer == console.oidc.issuer)
        provider = Provider(console.oidc, issuer, callers)
    app = console_app(
        instance, Looks(read), stop, door, SqlTables(instance.config, directory), provider
    )
    server = InLoopServer(cast("App", app), listener, "the console")

    async def serve() -> None:
        await server.start()
        rights = asyncio.create_task(keep_running("console-rights", callers.follow))
        on_started(server.port)
        while not stop.is_set():  # noqa: ASYNC110 (it may be the event of another process)
            await asyncio.sleep(_STOP_LOOK_S)
        await server.stop()
        rights.cancel()
        await asyncio.gather(rights, return_exceptions=True)

    try:
        asyncio.run(serve())
    finally:
        callers.close()


def _cookies(of: str, *, secure: bool) -> Cookies:
    """Names that no other console of the host has: browsers send cookies to each of its ports."""
    mark = sha256(of.encode()).hexdigest()[:8]
    host = "__Host-" if secure else ""
    login = "__Secure-" if secure else ""
    return Cookies(
        f"{host}cellfeed-{mark}",
        f"{login}cellfeed-login-{mark}",
        f"{host}cellfeed-form-{mark}",
        secure,
    )
