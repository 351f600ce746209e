"""The HTTP listener of ``/livez``, ``/readyz`` and ``/metrics``: a few threads and no state."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Final

import msgspec

from cellfeed.processes.health import HealthReport, ProcessHealth
from cellfeed.store.background import SupervisedThread
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.server_end import end_serving

REQUEST_TIMEOUT_S: Final = 5.0
"""Longest silence of a peer, in seconds: a probe sends its request at once."""

CONNECTIONS_MAX: Final = 16
"""Connections at the same time; more are closed unanswered. A host has one or two probers."""


class HealthListener:
    """Serves the reports of ``health`` from its construction until ``close``. Raises
    StorageUnavailable when the port cannot be had. ``port``: the bound one, also for 0."""

    def __init__(self, health: ProcessHealth, host: str, port: int) -> None:
        self._server = _Server(health, host, port)
        self.port: int = self._server.server_address[1]
        self._thread = SupervisedThread("health-listener", self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        end_serving(self._server)
        self._thread.join()


def listen(health: ProcessHealth, host: str, port: int, kept: int) -> HealthListener:
    """A listener on ``port``; for 0 on the port ``kept`` from the last run, or where another
    program has that now, on a free one. Raises StorageUnavailable."""
    if not port and kept:
        with suppress(StorageUnavailable):
            return HealthListener(health, host, kept)
    return HealthListener(health, host, port)


def is_of_this_host(peer: str) -> bool:
    """Whether the address of a peer is a loopback one."""
    address = ipaddress.ip_address(peer.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, health: ProcessHealth, host: str, port: int) -> None:
        self.health = health
        self._places = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise StorageUnavailable(f"cannot listen on {host}:{port}: {error}") from error

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks the DNS for the name of the address.
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that goes away is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "cellfeed"
    sys_version = ""
    timeout = REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        health = self.server.health
        if self.path.partition("?")[0] == "/metrics":
            # Start-up: most listeners are never asked for it.
            from cellfeed.processes.metrics import METRICS_TYPE, process_metrics

            self._answer(200, process_metrics(health), METRICS_TYPE)
            return
        routes: dict[str, Callable[[], HealthReport]] = {
            "/livez": health.live,
            "/readyz": health.ready,
        }
        if (report := routes.get(self.path.partition("?")[0])) is None:
            self._answer(404, b'{"error":"not_found"}')
            return
        found = report()
        if not is_of_this_host(self.client_address[0]):
            found = msgspec.structs.replace(found, reasons=[])
        self._answer(200 if found.is_ok else 503, msgspec.json.encode(found))

    def _answer(self, status: int, body: bytes, media_type: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Probes come every few seconds: none is logged."""
