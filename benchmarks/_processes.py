"""The parts of a system as processes of their own, as they run in earnest: a worker and a gateway
over one embedded datastore, and clients of both.

Each is started again (spawned, so that nothing is shared with the process that measures) and ends
with it, however that one ends. It imports the code that it runs, and nothing else: where memory is
measured, it is that of the part alone.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import psutil

if TYPE_CHECKING:
    from cellfeed.store.datastore import Datastore
    from cellfeed.store.http.calls.access import AccessOptions

START_TIMEOUT_S = 60.0
"""From spawning a process to its first word: imports on a busy machine take seconds, a hang would
take for ever."""

STOP_TIMEOUT_S = 20.0
"""From asking a process to end to killing it."""

Body = Callable[[Connection, Event, dict[str, Any]], None]
"""The body of a process: tells and is reported things through the connection, ends when the event
is set."""


class Process:
    """``body(connection, stop, settings)`` in a spawned process; ``body`` must be a module's
    function. Use in a ``with``."""

    def __init__(self, body: Body, **settings: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self.pipe, self._other_end = context.Pipe()
        self._process = context.Process(
            target=_run, args=(body, self._other_end, self._stop, settings), daemon=True
        )
        self._usage: psutil.Process | None = None

    def __enter__(self) -> Self:
        self._process.start()
        self._other_end.close()
        self._usage = psutil.Process(self._process.pid)
        return self

    def told(self, timeout_s: float = START_TIMEOUT_S) -> Any:
        """The next thing that the process tells. Raises TimeoutError, or EOFError when it ended
        without a word."""
        if not self.pipe.poll(timeout_s):
            raise TimeoutError(f"process {self._process.pid} told nothing for {timeout_s} s")
        return self.pipe.recv()

    @property
    def pid(self) -> int:
        return self._running().pid

    def cpu_seconds(self) -> float:
        """User and system time so far, all threads together."""
        times = self._running().cpu_times()
        return float(times.user + times.system)

    def rss_bytes(self) -> int:
        """Resident memory."""
        return int(self._running().memory_info().rss)

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._process.join(STOP_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.pipe.close()

    def _running(self) -> psutil.Process:
        if self._usage is None:
            raise RuntimeError("the process was not started")
        return self._usage


class Worker(Process):
    """A worker over the datastore in ``directory``; ``url`` once entered. ``trains``: whether it
    trains dictionaries, as a configured one does unless told otherwise. ``secure``: it listens with
    TLS and asks for credentials, which ``access`` has for a client."""

    def __init__(
        self,
        directory: str | Path,
        shards: int = 16,
        *,
        trains: bool = False,
        secure: bool = False,
    ) -> None:
        super().__init__(
            _serve_http, directory=str(directory), shards=shards, trains=trains, secure=secure
        )
        self._secure = secure
        self.access: AccessOptions = {}

    def __enter__(self) -> Self:
        super().__enter__()
        told = self.told()
        if self._secure:
            port, token, authority = told
            self.access = {"token": token, "ssl_ca": authority}
            self.url = f"https://127.0.0.1:{port}"
        else:
            self.url = f"http://127.0.0.1:{told}"
        return self


class Gateway(Process):
    """A gateway over the datastore in ``directory``; ``bootstrap`` once entered."""

    def __init__(self, directory: str | Path, shards: int = 16) -> None:
        super().__init__(_serve_kafka, directory=str(directory), shards=shards)

    def __enter__(self) -> Self:
        super().__enter__()
        self.bootstrap = f"127.0.0.1:{self.told()}"
        return self


def _run(body: Body, connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    body(connection, stop, settings)


def _serve_http(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    from cellfeed.store.datastore import Datastore
    from cellfeed.store.http.server.worker import run_worker

    with Datastore.open_embedded(
        Path(settings["directory"]), shards=settings["shards"]
    ) as datastore:
        if settings["trains"]:
            datastore.train_dictionaries()
        if settings["secure"]:
            _serve_secured(datastore, connection, stop, Path(settings["directory"]))
        else:
            run_worker(datastore, stop=stop, on_started=connection.send)


def _serve_secured(
    datastore: Datastore, connection: Connection, stop: Event, directory: Path
) -> None:
    from cellfeed.store.http.server.listening import HttpListener
    from cellfeed.store.http.server.worker import run_worker
    from cellfeed.store.security.certificates import TlsFiles
    from cellfeed.store.security.rights import Acl
    from cellfeed.store.security.tokens import create_token
    from cellfeed.store.security.users import allow
    from tests.support.certificates import make_certificates

    files = make_certificates(directory / "tls")
    allow(datastore.state, Acl("writer", "datastore", datastore.name, "put"))
    token = create_token(datastore.state, "writer", None)
    run_worker(
        datastore,
        stop=stop,
        on_started=lambda port: connection.send((port, token, files.ca)),
        listener=HttpListener(tls=TlsFiles(files.certificate, files.key), authentication=True),
    )


def _serve_kafka(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    from cellfeed.bridge.coordination.in_store import StoreCoordinator
    from cellfeed.bridge.gateway.config import GatewayConfig
    from cellfeed.bridge.gateway.run import run_gateway
    from cellfeed.store.datastore import Datastore

    config = GatewayConfig(port=0, registry_port=0, group_initial_delay_s=0)
    with Datastore.open_embedded(
        Path(settings["directory"]), shards=settings["shards"]
    ) as datastore:
        # The event of another kind of process waits and is set like a thread's.
        run_gateway(
            datastore,
            StoreCoordinator(datastore.state),
            config,
            cast("threading.Event", stop),
            lambda port, _registry: connection.send(port),
        )
