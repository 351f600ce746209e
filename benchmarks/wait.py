"""From an acknowledged put to the answer of a wait for it, at each kind of outlet.

One caller puts a cell through HTTP and waits for it, again and again: at a trigger, an index, a
consumer group at a gateway and an export. Worker and outlet are processes of their own, over one
embedded store. The consumer commits behind each record. Without Java the export is left out.

``over the lag``: from the moment at which the outlet began to save the position behind the cell to
the answer at the caller. The saved offset names that moment. So the figure contains the save
itself, and the answer's way through the worker and the client. ``from the put``: from the put's
acknowledgement to the answer. Beside each the same by polling: a worker whose waiters send no
watch, so that nobody wakes them and no outlet saves at once. Both take turns in one run.

``token``: the time of a cell in a batch of ``BATCH`` through HTTP whose answer has tokens, beside a
worker that makes none.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final, cast
from uuid import UUID

from confluent_kafka import Consumer, KafkaException

from benchmarks import Figure, at_most
from benchmarks._export import export, make_topic
from benchmarks._indexes import DEFINITION, create, index_workers, trip, wait_until_current
from benchmarks._kafka_broker import JarsUnavailable, kafka_broker
from benchmarks._processes import Gateway, Process
from benchmarks.put_to_consumer import percentile
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.groups.control import EXPORTS
from cellfeed.bridge.outlets.find import outlets
from cellfeed.bridge.triggers.program import trigger
from cellfeed.bridge.triggers.worker import run_trigger_worker
from cellfeed.store.cells import cell as cells
from cellfeed.store.datastore import Datastore
from cellfeed.store.http.client import Client
from cellfeed.store.http.server.worker import run_worker
from cellfeed.store.waits import awaited, watched_outlet
from tests.support.waiting import wait_until

WAITS: Final = 200
"""Of each kind in each run."""
RUNS: Final = 3
SETTLE_S: Final = watched_outlet.LINGER_S + awaited.WATCH_S
"""Until the watches of the other worker have run out."""
BATCHES: Final = 40
"""Of each variant of ``token``, in each run."""
BATCH: Final = 500
GROUP: Final = "waited"
TIMEOUT_S: Final = 60.0
P99_MS: Final = at_most(5.0)

KINDS: Final = ("trigger", "index", "group", "export")
GROUPS: Final = {
    "trigger": GROUP,
    "index": f"index.{DEFINITION.table}.v1",
    "group": "analytics",
    "export": f"{EXPORTS}trips",
}
NAMES: Final = {
    "trigger": GROUP,
    "index": DEFINITION.table,
    "group": "analytics",
    "export": "trips",
}

Seconds = dict[str, list[float]]


def figures(
    waits: int = WAITS, runs: int = RUNS, batches: int = BATCHES, settle_s: float = SETTLE_S
) -> Iterator[Figure]:
    """Measures; see the module."""
    for kind in KINDS:
        try:
            over, since = _waits(kind, waits, runs, settle_s)
        except JarsUnavailable:
            continue
        for name, found, limit in (("over the lag", over, P99_MS), ("from the put", since, None)):
            for part in (50, 99):
                yield Figure(
                    f"wait {kind} {name} p{part}",
                    percentile(sorted(found["woken"]), part) * 1e3,
                    "ms",
                    "polling",
                    percentile(sorted(found["polling"]), part) * 1e3,
                    limit if part == 99 else None,
                )
    yield from _token(batches, runs)


def _waits(kind: str, count: int, runs: int, settle_s: float) -> tuple[Seconds, Seconds]:
    over: Seconds = defaultdict(list)
    since: Seconds = defaultdict(list)
    numbers = iter(range(1 << 30))
    with ExitStack() as running:
        directory = running.enter_context(tempfile.TemporaryDirectory())
        store = running.enter_context(Datastore.open_embedded(Path(directory)))
        urls = {
            how: _started(running, Process(_serve, directory=directory, polls=how == "polling"))
            for how in ("woken", "polling")
        }
        clients = {
            how: running.enter_context(Client(f"http://127.0.0.1:{port}", "trips"))
            for how, port in urls.items()
        }
        _start_outlet(kind, running, directory, store)
        saved = running.enter_context(closing(StoreCoordinator(store.state)))
        for client in clients.values():
            _until_it_waits(client, kind, numbers)
        for _ in range(runs):
            for how, client in clients.items():
                time.sleep(settle_s)
                for number in range(count + 20):
                    result = client.put_cell(*trip(next(numbers)))
                    put_s = time.time()
                    client.wait_for(result, timeout_s=TIMEOUT_S, **_at(kind))
                    answered_s = time.time()
                    if number >= 20:
                        assert result.shard is not None
                        [offset] = saved.fetch_offsets(
                            GROUPS[kind], [("trips", result.shard)]
                        ).values()
                        over[how].append(answered_s - offset.committed_at_us / 1e6)
                        since[how].append(answered_s - put_s)
    return over, since


def _at(kind: str) -> Any:
    return {kind: NAMES[kind]}


def _until_it_waits(client: Client, kind: str, numbers: Iterator[int]) -> None:
    def waited() -> bool:
        try:
            client.wait_for(client.put_cell(*trip(next(numbers))), timeout_s=TIMEOUT_S, **_at(kind))
        except Exception:
            return False
        return True

    wait_until(waited, f"the {kind} is there", TIMEOUT_S)


def _started(running: ExitStack, process: Process) -> Any:
    running.enter_context(process)
    return process.told()


def _start_outlet(kind: str, running: ExitStack, directory: str, store: Datastore) -> None:
    if kind == "trigger":
        _started(running, Process(_run_trigger, directory=directory))
    elif kind == "index":
        create(store)
        for worker in index_workers(directory):
            _started(running, worker)
        wait_until_current(store)
    elif kind == "group":
        gateway = running.enter_context(Gateway(directory))
        _started(running, Process(_consume, bootstrap=gateway.bootstrap))
    else:
        kafka = running.enter_context(tempfile.TemporaryDirectory())
        bootstrap = running.enter_context(kafka_broker(Path(kafka)))
        make_topic(bootstrap)
        _started(running, Process(export, bootstrap=bootstrap, directory=directory, cells=1 << 40))


def _serve(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    """A worker; ``polls``: its waiters send no watch; ``tokens``: whether puts have one."""
    if settings.get("polls"):
        awaited.Watch.send_where_due = lambda *_: None  # type: ignore[method-assign]
    if not settings.get("tokens", True):
        vars(cells)["token_text"] = lambda *_: None
    with Datastore.open_embedded(Path(settings["directory"])) as datastore:
        datastore.waits.find = outlets(datastore, StoreCoordinator(datastore.state))
        run_worker(datastore, stop=cast("Any", stop), on_started=connection.send)


def _run_trigger(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    @trigger(column="BASE", group=GROUP)
    def nothing(row_key: UUID) -> None:
        del row_key

    with Datastore.open_embedded(Path(settings["directory"])) as datastore:
        connection.send("begins")
        run_trigger_worker(
            [nothing.__cellfeed_trigger__],  # type: ignore[attr-defined]
            datastore,
            StoreCoordinator(datastore.state),
            "benchmark",
            cast("Any", stop),
        )


def _consume(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    """Commits behind each record."""
    consumer = Consumer(
        {
            "bootstrap.servers": settings["bootstrap"],
            "group.id": GROUPS["group"],
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["trips"])
    connection.send("begins")
    while not stop.is_set():
        message = consumer.poll(0.5)
        if message is not None and not message.error():
            try:
                cast("Any", consumer).commit(message, asynchronous=False)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
    consumer.close()


def _token(count: int, runs: int) -> Iterator[Figure]:
    found: dict[bool, list[float]] = defaultdict(list)
    with ExitStack() as running:
        clients: dict[bool, Client] = {}
        for tokens in (True, False):
            directory = running.enter_context(tempfile.TemporaryDirectory())
            port = _started(running, Process(_serve, directory=directory, tokens=tokens))
            client = Client(f"http://127.0.0.1:{port}", "trips")
            clients[tokens] = running.enter_context(client)
        for number in range(5 + count * runs):
            batch = [trip(number * BATCH + each) for each in range(BATCH)]
            for tokens, client in clients.items():
                begun_s = time.perf_counter()
                client.put_cells(batch)
                if number >= 5:
                    found[tokens].append(time.perf_counter() - begun_s)
    yield Figure(
        "wait token p50", _p50_us(found[True]), "µs/cell", "without", _p50_us(found[False])
    )


def _p50_us(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) / BATCH * 1e6
