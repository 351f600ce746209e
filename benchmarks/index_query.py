"""Queries of an index with a shard field and a range of time, through HTTP, from eight callers;
beside reads of one cell by its key through the same worker.

``index-query``: 20 rows of one driver, the worker in a process of its own, eight callers with a
connection each in another; embedded and MariaDB. The callers send requests made beforehand and only
read the answers whole: they share the cores with the measured work. ``worker CPU`` is the
worker's.
"""

from __future__ import annotations

import json
import random
import selectors
import socket
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

from benchmarks import Figure, at_least, at_most
from benchmarks._indexes import (
    STORES,
    create,
    driver,
    fill,
    index_workers,
    open_store,
    place_of,
    trip,
    wait_until_current,
)
from benchmarks._processes import Process
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.outlets.handled_to import handled_to
from cellfeed.store.http.server.worker import run_worker

CELLS = 1_000_000
CALLERS = 8
REQUESTS = 2_000
"""Requests made beforehand; each call takes one at random."""

SECONDS = 5.0
ROWS = 20
ROUNDS = 3
RATE = at_least(2_000)
P99_MS = at_most(10)


def figures(
    count: int = CELLS, seconds: float = SECONDS, stores: Sequence[str] = STORES
) -> Iterator[Figure]:
    """Measures; see the module."""
    for kind in stores:
        with place_of(kind) as place, open_store(place) as store, ExitStack() as running:
            fill(store, count)
            with ExitStack() as building:
                for worker in index_workers(place, 2):
                    building.enter_context(worker)
                create(store)
                wait_until_current(store)
            served = running.enter_context(Process(_serve, place=place, settles=True))
            port = served.told()
            keys = [trip(number)[0] for number in range(0, count, max(1, count // REQUESTS))]
            reads, _, _ = _measure(
                served,
                port,
                seconds,
                [_request("GET", f"cell?row_key={key}&column_name=BASE&ref_key=1") for key in keys],
            )
            for mode in ("fresh", "fast"):
                rate, times, worker_us = _measure(
                    served,
                    port,
                    seconds,
                    [_query(number, mode) for number in range(0, 7 * REQUESTS, 7)],
                )
                fresh = mode == "fresh"
                yield Figure(
                    f"index-query {kind} {mode} rate",
                    rate,
                    "queries/s",
                    "reads of one cell",
                    reads,
                    RATE if fresh else None,
                )
                yield Figure(f"index-query {kind} {mode} worker CPU", worker_us, "µs/query")
                if fresh and store.engine.indexes.beside_ends is not None:
                    yield from _beside_looks(place, kind, seconds, served, port)
                yield Figure(f"index-query {kind} {mode} p50", times[len(times) // 2] * 1e3, "ms")
                yield Figure(
                    f"index-query {kind} {mode} p99",
                    times[len(times) * 99 // 100] * 1e3,
                    "ms",
                    limit=P99_MS if fresh else None,
                )


def _beside_looks(
    place: str, kind: str, seconds: float, served: Process, port: int
) -> Iterator[Figure]:
    """Fresh queries by turns with a worker that looks at the cells of every row: it does not know
    how far the index is."""
    requests = [_query(number, "fresh") for number in range(0, 7 * REQUESTS, 7)]
    with Process(_serve, place=place, settles=False) as looking:
        places = [(served, port), (looking, looking.told())]
        found = [[_measure(*each, seconds / 2, requests) for each in places] for _ in range(ROUNDS)]
    what = "with a look at every row"
    rate, looking_rate = (statistics.median(turn[which][0] for turn in found) for which in (0, 1))
    cpu, looking_cpu = (statistics.median(turn[which][2] for turn in found) for which in (0, 1))
    name = f"index-query {kind} fresh by turns"
    yield Figure(f"{name} rate", rate, "queries/s", what, looking_rate)
    yield Figure(f"{name} worker CPU", cpu, "µs/query", what, looking_cpu)


def _query(number: int, mode: str) -> bytes:
    wanted = {
        "shard_value": driver(number),
        "where": [["at", ">=", "2019-03-05T00:00:00Z"]],
        "order_by": "at",
        "limit": ROWS,
        "mode": mode,
    }
    return _request("POST", "indexes/trips_by_driver/query", json.dumps(wanted).encode())


def _request(method: str, path: str, body: bytes = b"") -> bytes:
    head = (
        f"{method} /v1/trips/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type:"
        f" application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _measure(
    served: Process, port: int, seconds: float, requests: list[bytes]
) -> tuple[float, list[float], float]:
    """Calls a second of all callers together, how long each took, in order, and the worker's CPU
    for each in microseconds."""
    with Process(_call, port=port, seconds=seconds, requests=requests) as callers:
        callers.told()
        before_s = served.cpu_seconds()
        callers.pipe.send("go")
        times = callers.told(seconds + 60)
        return (
            len(times) / seconds,
            sorted(times),
            (served.cpu_seconds() - before_s) / len(times) * 1e6,
        )


def _call(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    """All callers in one thread: threads of their own would fight for the interpreter, and their
    times would report that."""
    chosen, times = random.Random(1), list[float]()
    with ExitStack() as open_sockets, selectors.DefaultSelector() as ready:
        callers = [
            _Caller(
                open_sockets.enter_context(
                    socket.create_connection(("127.0.0.1", settings["port"]))
                )
            )
            for _ in range(CALLERS)
        ]
        connection.send("ready")
        connection.recv()
        end_s = time.monotonic() + settings["seconds"]
        for caller in callers:
            ready.register(caller.sock, selectors.EVENT_READ, caller)
            caller.send(chosen.choice(settings["requests"]))
        while ready.get_map():
            for key, _ in ready.select():
                took_s = key.data.receive()
                if took_s is None:
                    continue
                times.append(took_s)
                if time.monotonic() < end_s:
                    key.data.send(chosen.choice(settings["requests"]))
                else:
                    ready.unregister(key.fileobj)
    connection.send(times)
    stop.wait()


class _Caller:
    """One connection, with one request under way at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, request: bytes) -> None:
        self._answer, self._bytes = b"", 0
        self._begun_s = time.monotonic()
        self.sock.sendall(request)

    def receive(self) -> float | None:
        """Takes the entries that are there: how long the request took once its answer is whole,
        else None. Raises RuntimeError for any answer but 200."""
        piece = self.sock.recv(1 << 16)
        if not piece:
            raise RuntimeError("the worker closed the connection")
        self._answer += piece
        if not self._bytes and (head_bytes := self._answer.find(b"\r\n\r\n")) >= 0:
            head = self._answer[:head_bytes].lower()
            if not head.startswith(b"http/1.1 200"):
                raise RuntimeError(self._answer[:300])
            self._bytes = (
                head_bytes + 4 + int(head.partition(b"content-length:")[2].partition(b"\r")[0])
            )
        return (
            time.monotonic() - self._begun_s
            if self._bytes and len(self._answer) >= self._bytes
            else None
        )


def _serve(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    ended = threading.Event()

    def end_with_it() -> None:
        stop.wait()
        ended.set()

    threading.Thread(target=end_with_it, daemon=True).start()
    with (
        open_store(settings["place"]) as store,
        closing(StoreCoordinator(store.state)) as coordinator,
    ):
        if settings["settles"]:
            store.indexes.settled.handled_to = handled_to(store, coordinator)
        run_worker(store, "127.0.0.1", 0, stop=ended, on_started=connection.send)
