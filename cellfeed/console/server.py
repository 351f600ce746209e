"""Serves the console on a loopback port until it is to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from cellfeed.assembly.datastore import Opened
from cellfeed.config.checks import check_loopback
from cellfeed.console.app import console_app
from cellfeed.status.instance_status import InstanceStatus
from cellfeed.status.looks import Looks
from cellfeed.store.http.server.asgi import App
from cellfeed.store.http.server.in_loop import InLoopServer
from cellfeed.store.http.server.listening import HttpListener
from cellfeed.store.http.server.worker import StopSignal

_STOP_LOOK_S: Final = 0.1


def run_console(
    instance: Opened,
    read: Callable[[], InstanceStatus],
    host: str,
    port: int,
    stop: StopSignal,
    on_started: Callable[[int], None],
) -> None:
    """``read``: reads the status once. ``on_started`` gets the port. Raises ProtectData for a host
    beyond loopback, InvalidRequest when the port cannot be bound."""
    app = console_app(instance, Looks(read), stop)
    check_loopback("console", host)
    server = InLoopServer(cast("App", app), HttpListener(host, port), "the console")

    async def serve() -> None:
        await server.start()
        on_started(server.port)
        while not stop.is_set():  # noqa: ASYNC110 (it may be the event of another process)
            await asyncio.sleep(_STOP_LOOK_S)
        await server.stop()

    asyncio.run(serve())
