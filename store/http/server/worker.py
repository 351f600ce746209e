"""The worker process: a datastore behind HTTP, until a signal stops it."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

from prometheus_client.registry import Collector

from cellfeed.store.datastore import Datastore
from cellfeed.store.gc_tuning import collect_seldom
from cellfeed.store.http.server.app import WorkerApp
from cellfeed.store.http.server.bodies import BODIES
from cellfeed.store.http.server.callers import Callers
from cellfeed.store.http.server.credentials import SignedTokens
from cellfeed.store.http.server.listening import HttpListener, listen
from cellfeed.store.http.server.serving import HttpServer
from cellfeed.store.progress import Watch
from cellfeed.store.security.audit import AuditLog
from cellfeed.store.security.authority import Authority
from cellfeed.store.security.certificates import Certificates
from cellfeed.store.security.peer_limits import PeerLimits

OWNER = "the worker"


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
    listener: HttpListener | None = None,
    certificates: Certificates | None = None,
    signed: SignedTokens | None = None,
    audit: AuditLog | None = None,
    limits: PeerLimits | None = None,
    advertised: str | None = None,
) -> None:
    """Serves ``datastore`` until ``stop`` is set (looked at every 0.1 s); requests under way are
    answered first. Does not close the datastore.

    ``on_started`` is called with the port, which the kernel chooses when ``port`` is 0, once
    connections are taken. Signals are left to the caller. ``collectors`` add to ``/metrics``.
    ``listener``: instead of ``host`` and ``port``, one with TLS and authentication;
    ``certificates``: its, where the caller has them read again. ``signed`` verifies tokens of
    identity providers; ``audit`` gets a line of each request. ``limits``: of its peers.
    ``advertised``: ``host`` or ``host:port`` where other machines reach it; it wakes followers
    there. Raises ProtectData for a listener beyond loopback without both, StorageUnavailable when
    the port cannot be had.
    """
    where = listener or HttpListener(host, port)
    sockets = listen(where, OWNER)
    authority = Authority(datastore.state)
    authority.look()  # a request that comes at once finds the users; without storage, nobody
    callers = Callers(datastore.name, authority, required=where.needs_credentials, signed=signed)
    limits = limits or PeerLimits()
    app = WorkerApp(datastore, collectors, callers, audit, limits.quotas)

    loops: dict[str, Callable[[], Awaitable[None]]] = {"http-rights": callers.follow}
    if advertised is not None:
        url = _url(advertised, sockets[0].getsockname()[1], has_tls=where.tls is not None)
        loops["http-wakeups"] = partial(app.wakeups.keep_address, url)

    def started() -> None:
        collect_seldom()
        if on_started is not None:
            on_started(sockets[0].getsockname()[1])

    def closing() -> None:
        app.closing.set()
        BODIES.end_all()

    try:
        server = HttpServer(
            app,
            sockets,
            certificates or Certificates(where.tls, OWNER),
            lifespan=True,
            stops=(stop or threading.Event()).is_set,
            on_started=started,
            on_closing=closing,
            loops=loops,
            watch=Watch("of the worker", "event-loop"),
            limits=limits,
        )
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(server.serve())
    finally:
        for each in sockets:
            each.close()
        app.close()


def _url(advertised: str, port: int, *, has_tls: bool) -> str:
    has_port = re.fullmatch(r"(\[.*\]|[^:]*):\d+", advertised)
    where = advertised if has_port else f"{advertised}:{port}"
    return f"{'https' if has_tls else 'http'}://{where}"
