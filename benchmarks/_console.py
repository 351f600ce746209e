"""A console over an embedded datastore in a process of its own, and a reader of its pages
that loads them as a browser does."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final, Self

from benchmarks._processes import Process

ANSWER_TIMEOUT_S: Final = 60.0


class Console(Process):
    """Over the datastore in ``directory``; ``port`` once entered."""

    def __init__(self, directory: str, shards: int) -> None:
        super().__init__(_serve, directory=directory, shards=shards)

    def __enter__(self) -> Self:
        super().__enter__()
        self.port: int = self.told()
        return self


class Pages:
    """One connection that stays open, as a browser's does."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_TIMEOUT_S)

    def ask(self, path: str) -> float:
        """Milliseconds until the whole page is there. Raises RuntimeError for an error page."""
        begun = time.perf_counter()
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        answer.read()
        took_ms = (time.perf_counter() - begun) * 1e3
        if answer.status != 200:
            raise RuntimeError(f"{path} answered {answer.status}")
        return took_ms

    def close(self) -> None:
        self._connection.close()


@contextmanager
def open_page(port: int, path: str) -> Iterator[list[float]]:
    """A page that stands open: each event ``look`` has it loaded again. Gives the milliseconds of
    each load, as they come. Raises RuntimeError when it was loaded never."""
    stream = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_TIMEOUT_S)
    pages, loads, ends = Pages(port), list[float](), threading.Event()
    stream.request("GET", "/changes")
    answer = stream.getresponse()

    def follow() -> None:
        while not ends.is_set():
            line = answer.readline()
            if not line:
                return
            if line.startswith(b"event: look"):
                loads.append(pages.ask(path))

    thread = threading.Thread(target=follow, name="open-page")
    thread.start()
    try:
        yield loads
    finally:
        ends.set()
        thread.join(ANSWER_TIMEOUT_S)
        stream.close()
        pages.close()
    if not loads:
        raise RuntimeError("the open page was never loaded again")


def _serve(connection: Connection, stop: Event, settings: Mapping[str, Any]) -> None:
    from cellfeed.assembly.datastore import opened
    from cellfeed.bridge.triggers.operate.lag import LagReader
    from cellfeed.config.model import Config, ConsoleConfig, DatastoreConfig
    from cellfeed.console.server import run_console
    from cellfeed.run_dir import RunDir
    from cellfeed.status.instance_status import read_opened

    directory = RunDir(Path(settings["directory"]))
    directory.make()
    config = Config(datastore=DatastoreConfig(shards=settings["shards"], directory="."))
    with opened(config, directory.path) as instance:
        reader = LagReader(instance.datastore, instance.coordinator)
        run_console(
            instance,
            directory.path,
            lambda: read_opened(directory, instance, None, reader),
            ConsoleConfig(name="console", port=0),
            0,
            stop,
            connection.send,
        )
