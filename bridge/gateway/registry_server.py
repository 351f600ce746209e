"""The HTTP server of the schema registry and the metrics, inside the gateway's event loop."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import uvicorn

from cellfeed.store.errors import InvalidRequest
from cellfeed.store.http.server.asgi import App


class RegistryServer:
    """``await start()``, then it serves on ``port`` until ``await stop()``."""

    def __init__(self, app: App, host: str, port: int) -> None:
        self._server = _QuietServer(
            uvicorn.Config(
                app, host=host, port=port, log_level="warning", lifespan="off", access_log=False
            )
        )
        self._task: asyncio.Task[None] | None = None
        self.port = port

    async def start(self) -> None:
        """Raises InvalidRequest when the port cannot be bound."""
        task = self._task = asyncio.create_task(self._server.serve())
        while not self._server.started:
            if task.done():
                config = self._server.config
                raise InvalidRequest(
                    f"the schema registry's port {config.port} on {config.host} cannot be bound"
                )
            await asyncio.sleep(0.005)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Waits for the requests that are being answered."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task


class _QuietServer(uvicorn.Server):
    """uvicorn inside another program: signals are the program's."""

    def install_signal_handlers(self) -> None:
        """Leaves the handlers as they are."""

    def capture_signals(self) -> object:  # type: ignore[override]
        """Leaves the handlers as they are."""
        return nullcontext()
