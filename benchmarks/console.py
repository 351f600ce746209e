"""The answer time of every page of the console, and the puts a second beside an open page.

Over the embedded store, with few and many shards, at two sizes; the console and the HTTP worker are
processes of their own. The instance is in a bad night: a trigger has every shard and no worker, and
a consumer group and the trigger are behind in every shard. Each page is asked ``CALLS`` times, in
turns with all others over one connection; percentiles are over these answers.

``puts``: single puts through HTTP by ``CALLERS`` threads as fast as they are acknowledged, in
windows by turns: with a page of the console open, which loads itself again at each look, and with
the console idle beside. The figure is the median of the windows. ``CPU`` is the console's
processor time in these windows, in per cent of one core.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from benchmarks import Figure, at_least, at_most
from benchmarks._console import Console, Pages, open_page
from benchmarks._indexes import DEFINITION
from benchmarks._processes import Worker
from benchmarks.gateway_read import fill
from benchmarks.put_to_consumer import percentile
from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.triggers.program import Trigger, trigger
from cellfeed.bridge.triggers.worker import run_trigger_worker
from cellfeed.store.datastore import Datastore
from cellfeed.store.http.client import Client
from cellfeed.store.indexes.catalog import Catalog

SIZES: Final = (100_000, 1_000_000)
SHARDS: Final = (16, 4_096)
CALLS: Final = 40
WINDOWS: Final = 4
WINDOW_S: Final = 8.0
CALLERS: Final = 8
GROUP: Final = "billing"
OPEN_PAGE: Final = f"/groups/{GROUP}"
READY_TIMEOUT_S: Final = 300.0

PAGE: Final = at_most(300.0)
PUTS_WITH_PAGE: Final = 0.98
"""Of the puts without an open page, at least."""


class _Puts(NamedTuple):
    """Puts a second, and the console's per cent of a core, in each window."""

    beside: list[float]
    alone: list[float]
    cpu_beside: list[float]
    cpu_alone: list[float]


def figures(
    sizes: Sequence[int] = SIZES,
    shards: Sequence[int] = SHARDS,
    calls: int = CALLS,
    windows: int = WINDOWS,
    window_s: float = WINDOW_S,
) -> Iterator[Figure]:
    """Measures; see the module."""
    for many in shards:
        for cells in sizes:
            name = f"console {many} shards {cells:,} cells"
            with tempfile.TemporaryDirectory() as directory:
                row = _prepare(directory, many, cells)
                with Console(directory, many) as console:
                    for page, took in _answers(console.port, _pages(row), calls).items():
                        for percent in (50, 99):
                            found = percentile(sorted(took), percent)
                            yield Figure(f"{name} {page} p{percent}", found, "ms", limit=PAGE)
                    puts = _puts(directory, many, console, windows, window_s)
            alone = statistics.median(puts.alone)
            yield Figure(
                f"{name} puts",
                statistics.median(puts.beside),
                "puts/s",
                "no page open",
                alone,
                at_least(PUTS_WITH_PAGE * alone),
            )
            yield Figure(
                f"{name} CPU",
                statistics.median(puts.cpu_beside),
                "% of a core",
                "no page open",
                statistics.median(puts.cpu_alone),
            )


def _pages(row: UUID) -> dict[str, str]:
    """Addresses by the name of their figure."""
    return {
        "stuck": "/",
        "groups": "/groups",
        "one group": OPEN_PAGE,
        "reset preview": f"/groups/reset/preview?group={GROUP}&to=earliest",
        "parked": "/parked",
        "log of all shards": "/log",
        "log of one": "/log?shard=1",
        "log of a column": "/log?column=BASE",
        "row": f"/row?key={row}",
        "query": "/query",
        "index": "/query/index",
        "put": "/put",
        "tokens": "/tokens",
        "cluster": "/cluster",
        "metrics": "/metrics",
    }


def _prepare(directory: str, shards: int, cells: int) -> UUID:
    """Gives the key of a row that is there."""
    with Datastore.open_embedded(Path(directory), shards=shards) as datastore:
        Catalog(datastore.state, datastore.name).create(DEFINITION)
        _run_trigger(datastore, StoreCoordinator(datastore.state))
    fill(directory, cells, shards)
    with Datastore.open_embedded(Path(directory), shards=shards) as datastore:
        heads = datastore.heads().items()
        StoreCoordinator(datastore.state).commit_offsets(
            "warehouse",
            {
                (datastore.name, shard): CommittedOffset(max(0, head.watermark - 1))
                for shard, head in heads
            },
        )
        return next(iter(datastore.get_cells_for_shard(1, 0, 1).cells)).row_key


def _run_trigger(datastore: Datastore, coordinator: StoreCoordinator) -> None:
    """Runs the trigger until its shards are known, then takes its worker away: all the cells that
    come are behind it."""

    @trigger("BASE", group=GROUP)
    def bill(row_key: UUID) -> None:
        """Nothing: there is no cell yet."""

    program: Trigger = bill.__cellfeed_trigger__  # type: ignore[attr-defined]
    stop = threading.Event()
    worker = threading.Thread(
        target=run_trigger_worker,
        args=([program], datastore, coordinator, "biller", stop),
        name="biller",
    )
    worker.start()
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while not datastore.state.list(f"triggers/{GROUP}/") and time.monotonic() < deadline_s:
        time.sleep(0.1)
    stop.set()
    worker.join(READY_TIMEOUT_S)


def _answers(port: int, paths: Mapping[str, str], calls: int) -> dict[str, list[float]]:
    """Milliseconds of each answer, by page; the first of each is not counted."""
    pages = Pages(port)
    took: dict[str, list[float]] = {name: [] for name in paths}
    for call in range(calls + 1):
        for name, path in paths.items():
            answered = pages.ask(path)
            if call:
                took[name].append(answered)
    pages.close()
    return took


def _puts(directory: str, shards: int, console: Console, windows: int, window_s: float) -> _Puts:
    found, keys = _Puts([], [], [], []), count(1 << 64)
    with Worker(directory, shards) as worker, Client(worker.url, "trips") as client:
        _window(client, keys, min(window_s, 1.0))
        for turn in range(windows):
            for is_open in (turn % 2 == 0, turn % 2 == 1):
                cpu_s, begun_s = console.cpu_seconds(), time.monotonic()
                if is_open:
                    with open_page(console.port, OPEN_PAGE):
                        found.beside.append(_window(client, keys, window_s))
                else:
                    found.alone.append(_window(client, keys, window_s))
                cpu = 100 * (console.cpu_seconds() - cpu_s) / (time.monotonic() - begun_s)
                (found.cpu_beside if is_open else found.cpu_alone).append(cpu)
    return found


def _window(client: Client, keys: Iterator[int], window_s: float) -> float:
    """Acknowledged puts a second."""
    ends, done = time.monotonic() + window_s, list[int]()

    def call() -> None:
        puts = 0
        while time.monotonic() < ends:
            client.put_cell(UUID(int=next(keys)), "BASE", 1, {"fare": 12.5})
            puts += 1
        done.append(puts)

    callers = [threading.Thread(target=call) for _ in range(CALLERS)]
    begun = time.monotonic()
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    if len(done) < CALLERS:
        raise RuntimeError("a put failed; its trace is above")
    return sum(done) / (time.monotonic() - begun)
