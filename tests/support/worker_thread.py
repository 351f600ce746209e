"""A worker in a thread of the test's own process, for tests that need no process to kill."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from cellfeed.store.datastore import Datastore
from cellfeed.store.http.server.worker import run_worker

START_TIMEOUT_S = 30.0


@contextlib.contextmanager
def worker_thread(datastore: Datastore, port: int = 0, **settings: Any) -> Iterator[str]:
    """The address of a worker that serves ``datastore``; it has ended, and answered the calls under
    way, when the block is left."""
    ports: list[int] = []
    started, stop = threading.Event(), threading.Event()

    def on_started(port: int) -> None:
        ports.append(port)
        started.set()

    thread = threading.Thread(
        target=run_worker,
        args=(datastore,),
        kwargs={"port": port, "stop": stop, "on_started": on_started, **settings},
        name="worker-under-test",
    )
    thread.start()
    try:
        assert started.wait(START_TIMEOUT_S), "the worker did not start"
        yield f"http://127.0.0.1:{ports[0]}"
    finally:
        stop.set()
        thread.join(START_TIMEOUT_S)
        assert not thread.is_alive(), "the worker did not end"
