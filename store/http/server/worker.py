"""The worker process: a datastore behind HTTP on a loopback port, until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Final, Protocol

import uvicorn
from prometheus_client.registry import Collector

from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import ProtectData, StorageUnavailable
from cellfeed.store.gc_tuning import collect_seldom
from cellfeed.store.http.server.app import WorkerApp
from cellfeed.store.http.server.bodies import BODIES
from cellfeed.store.http.server.connections import KEEP_ALIVE_S, Connection, cut_off_stalled
from cellfeed.store.limits import PUT_TIMEOUT_S
from cellfeed.store.progress import Watch

_BACKLOG: Final = 512
"""Connections the kernel keeps for us before they are accepted: a burst of clients that start
together."""

_log: Final = logging.getLogger("cellfeed.worker")


class StopSignal(Protocol):
    """A :class:`threading.Event`, or that of another kind of process."""

    def is_set(self) -> bool: ...


def run_worker(
    datastore: Datastore,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    stop: StopSignal | None = None,
    on_started: Callable[[int], None] | None = None,
    collectors: Sequence[Collector] = (),
) -> None:
    """Serves ``datastore`` until ``stop`` is set (looked at every 0.1 s); requests under way are
    answered first. Does not close the datastore.

    ``on_started`` is called with the port, which the kernel chooses when ``port`` is 0, once
    connections are taken. Signals are left to the caller. ``collectors`` add to ``/metrics``.
    Raises ProtectData for a host that is not loopback, StorageUnavailable when the port cannot be
    had.
    """
    listener = _listen(check_loopback(host), port)
    app = WorkerApp(datastore, collectors)
    server = _Server(
        app,
        stop or threading.Event(),
        lambda: on_started(listener.getsockname()[1]) if on_started else None,
    )
    try:
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(server.serve(sockets=[listener]))
    finally:
        listener.close()
        app.close()


def check_loopback(host: str) -> str:
    """A host of this machine alone. Raises ProtectData for any other: there is no encryption or
    authentication here yet."""
    try:
        if host == "localhost" or ipaddress.ip_address(host).is_loopback:
            return host
    except ValueError:
        pass
    raise ProtectData(
        f"host {host!r} is not loopback; a worker has no TLS and no authentication, so it binds"
        " 127.0.0.1, ::1 or localhost only"
    )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise StorageUnavailable(f"cannot listen on {host}:{port}: {error}") from error
    return listener


class _Server(uvicorn.Server):
    def __init__(self, app: WorkerApp, stop: StopSignal, on_started: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                proxy_headers=False,  # no header may rename a peer on loopback
                loop="auto",
                lifespan="on",
                backlog=_BACKLOG,
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
        self._worker_app = app
        self._stop = stop
        self._on_started = on_started
        self._looked_at = time.monotonic()
        self._watch = Watch("of the worker", "event-loop")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        collect_seldom()
        self._on_started()

    async def on_tick(self, counter: int) -> bool:
        now = time.monotonic()
        self._watch.moved()
        if now - self._looked_at >= 1:
            self._looked_at = now
            BODIES.end_overdue(now)
            if cut := cut_off_stalled(self.server_state.connections, now):
                _log.warning("cut off %d connections whose peer neither sent nor read", cut)
        return await super().on_tick(counter) or self._stop.is_set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._worker_app.closing.set()
        BODIES.end_all()
        await super().shutdown(sockets)
        self._watch.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals belong to the process, which sets ``stop``."""
        yield
