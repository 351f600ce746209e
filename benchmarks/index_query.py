"""Queries of an index with a shard field and a range of time, through HTTP, from eight callers, beside reads of one cell by its key through the same worker.

``index-query``: 20 rows of one driver, ``fresh``, the worker in a process of its own, eight callers with a connection each in two more; embedded and MariaDB.
The callers send requests made beforehand and read the answers whole, no more: they share the cores with what is measured. ``worker CPU`` is the worker's.
"""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

from benchmarks import Figure, at_least, at_most
from benchmarks._indexes import STORES, create, driver, fill, index_workers, open_store, place_of, trip, wait_until_current
from benchmarks._processes import Process
from store.server.worker import run_worker

CELLS = 1_000_000
CALLERS = 8
CALLER_PROCESSES = 2
REQUESTS = 2_000
"""Requests made beforehand, of which each call takes one at random."""

SECONDS = 5.0
ROWS = 20
RATE = at_least(2_000)
P99_MS = at_most(10)


def figures(count: int = CELLS, seconds: float = SECONDS, stores: Sequence[str] = STORES) -> Iterator[Figure]:
    """Measures; see the module."""
    for kind in stores:
        with place_of(kind) as place, open_store(place) as store, ExitStack() as running:
            fill(store, count)
            with ExitStack() as building:
                for worker in index_workers(place, 2):
                    building.enter_context(worker)
                create(store)
                wait_until_current(store)
            served = running.enter_context(Process(_serve, place=place))
            port = served.told()
            keys = [trip(number)[0] for number in range(0, count, max(1, count // REQUESTS))]
            reads, _, _ = _measure(served, port, seconds, [_request("GET", f"cell?row_key={key}&column_name=BASE&ref_key=1") for key in keys])
            for mode in ("fresh", "fast"):
                rate, times, worker_us = _measure(served, port, seconds, [_query(number, mode) for number in range(0, 7 * REQUESTS, 7)])
                fresh = mode == "fresh"
                yield Figure(f"index-query {kind} {mode} rate", rate, "queries/s", "reads of one cell", reads, RATE if fresh else None)
                yield Figure(f"index-query {kind} {mode} worker CPU", worker_us, "µs/query")
                yield Figure(f"index-query {kind} {mode} p50", times[len(times) // 2] * 1e3, "ms")
                yield Figure(f"index-query {kind} {mode} p99", times[len(times) * 99 // 100] * 1e3, "ms", limit=P99_MS if fresh else None)


def _query(number: int, mode: str) -> bytes:
    wanted = {"shard_value": driver(number), "where": [["at", ">=", "2019-03-05T00:00:00Z"]], "order_by": "at", "limit": ROWS, "mode": mode}
    return _request("POST", "indexes/trips_by_driver/query", json.dumps(wanted).encode())


def _request(method: str, path: str, body: bytes = b"") -> bytes:
    head = f"{method} /v1/trips/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _measure(served: Process, port: int, seconds: float, requests: list[bytes]) -> tuple[float, list[float], float]:
    """Calls a second of all callers together, how long each took, in order, and the worker's CPU for each in microseconds."""
    with ExitStack() as running:
        callers = [running.enter_context(Process(_call, port=port, seconds=seconds, requests=requests, seed=seed)) for seed in range(CALLER_PROCESSES)]
        for caller in callers:
            caller.told()
        before_s = served.cpu_seconds()
        for caller in callers:
            caller.pipe.send("go")
        times = [time_s for caller in callers for time_s in caller.told(seconds + 60)]
        return len(times) / seconds, sorted(times), (served.cpu_seconds() - before_s) / len(times) * 1e6


def _call(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    times: list[float] = []

    def run(caller: int) -> None:
        chosen = random.Random(settings["seed"] * CALLERS + caller)
        with socket.create_connection(("127.0.0.1", settings["port"])) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end_s = time.monotonic() + settings["seconds"]
            while (begun_s := time.monotonic()) < end_s:
                sock.sendall(chosen.choice(settings["requests"]))
                _read_answer(sock)
                times.append(time.monotonic() - begun_s)

    threads = [threading.Thread(target=run, args=(caller,)) for caller in range(CALLERS // CALLER_PROCESSES)]
    connection.send("ready")
    connection.recv()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connection.send(times)
    stop.wait()


def _read_answer(sock: socket.socket) -> None:
    """Takes one whole answer. Raises RuntimeError for any but 200."""
    answer = _piece(sock)
    while (head_bytes := answer.find(b"\r\n\r\n")) < 0:
        answer += _piece(sock)
    head = answer[:head_bytes].lower()
    if not head.startswith(b"http/1.1 200"):
        raise RuntimeError(answer[:300])
    length = int(head.partition(b"content-length:")[2].partition(b"\r")[0])
    missing = length - (len(answer) - head_bytes - 4)
    while missing > 0:
        missing -= len(_piece(sock))


def _piece(sock: socket.socket) -> bytes:
    piece = sock.recv(1 << 16)
    if not piece:
        raise RuntimeError("the worker closed the connection")
    return piece


def _serve(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (stop.wait(), ended.set()), daemon=True).start()
    with open_store(settings["place"]) as store:
        run_worker(store, "127.0.0.1", 0, stop=ended, on_started=connection.send)
