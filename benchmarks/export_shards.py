"""An exporter over 4,096 shards, beside the same over 16: embedded store, one broker for each run.

``ready``: from the exporter's begin until it has every unit and the first cell is in Kafka.
``idle``: processor time with nothing to do, in per cent of a core. ``cell``: the exporter's
processor time for a cell at ``PUTS_PER_S`` single puts a second. ``latency``: from the
acknowledgement of a put to a reader of committed records of all partitions. ``committed``: until
the exporter has committed as many cells as were acknowledged, so without the reader's part.
``behind``: the same of the last cell, with no put behind it.

The topic is there before. Broker and reader have as many partitions as the exporter has shards, and
their part of the latency is in the figures; ``reader`` and ``broker`` are their processor times for
a cell.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks import Figure, at_most
from benchmarks._export import consume_committed, export, make_topic
from benchmarks._kafka_broker import JarsUnavailable, kafka_broker_process
from benchmarks._processes import Process, Worker
from benchmarks.put_http import Put, taxi_cells
from benchmarks.put_to_consumer import (
    ARRIVAL_TIMEOUT_S,
    Passage,
    passages_of,
    percentile,
    put_evenly,
)
from benchmarks.workers_shards import FEW, IDLE, MANY, PUTS_PER_S, TIMES_FEW
from cellfeed.store.http.client import Client

RUNS = 2
SECONDS = 15.0
WARM_UP_S = 5.0
IDLE_S = 20.0
SETTLE_S = 5.0
READY_TIMEOUT_S = 300.0


class _Run(NamedTuple):
    """Seconds, per cent of one core, and milliseconds of a core."""

    ready_s: float
    behind_s: float
    idle: float
    cell_ms: float
    reader_ms: float
    broker_ms: float
    passages: list[Passage]
    committed: list[float]


def figures(
    many: int = MANY,
    runs: int = RUNS,
    seconds: float = SECONDS,
    idle_s: float = IDLE_S,
    settle_s: float = SETTLE_S,
    warm_up_s: float = WARM_UP_S,
) -> Iterator[Figure]:
    """Measures; see the module. Raises RuntimeError where no broker can be had."""
    found: dict[int, list[_Run]] = {FEW: [], many: []}
    try:
        for _ in range(runs):
            for shards, measured in found.items():
                measured.append(_measured(shards, seconds, idle_s, settle_s))
    except JarsUnavailable as reason:
        raise RuntimeError(f"no Kafka: {reason}") from reason
    beside = f"{FEW} shards"
    for what, unit, limit in (
        ("ready_s", "s", None),
        ("behind_s", "s", None),
        ("idle", "% CPU", IDLE),
        ("cell_ms", "ms CPU", None),
        ("reader_ms", "ms CPU", None),
        ("broker_ms", "ms CPU", None),
    ):
        few, lots = (
            statistics.median(getattr(run, what) for run in found[shards]) for shards in (FEW, many)
        )
        name = what.removesuffix("_s").removesuffix("_ms")
        yield Figure(f"export-shards {name}", lots, unit, beside, few, limit)
    for percent in (50, 99):
        few, lots = (_latency(found[shards], percent, warm_up_s) for shards in (FEW, many))
        limit = at_most(TIMES_FEW * few)
        yield Figure(f"export-shards latency p{percent}", lots, "ms", beside, few, limit)
        few, lots = (_committed(found[shards], percent, warm_up_s) for shards in (FEW, many))
        yield Figure(f"export-shards committed p{percent}", lots, "ms", beside, few)


def _latency(runs: list[_Run], percent: int, warm_up_s: float) -> float:
    """Milliseconds, over all puts of all runs."""
    took = sorted(
        (passage.received - passage.acknowledged) * 1e3
        for run in runs
        for passage in run.passages
        if passage.started - run.passages[0].started >= warm_up_s
    )
    return percentile(took, percent)


def _committed(runs: list[_Run], percent: int, warm_up_s: float) -> float:
    """Milliseconds from the n-th acknowledgement to the commit with the n-th cell."""
    took = sorted(
        (committed - acknowledged) * 1e3
        for run in runs
        for acknowledged, committed in zip(
            sorted(passage.acknowledged for passage in run.passages), run.committed, strict=True
        )
        if acknowledged - run.passages[0].acknowledged >= warm_up_s
    )
    return percentile(took, percent)


def _measured(shards: int, seconds: float, idle_s: float, settle_s: float) -> _Run:
    cells: list[Put] = list(taxi_cells(max(1, int(PUTS_PER_S * seconds))))
    with (
        tempfile.TemporaryDirectory() as directory,
        kafka_broker_process(Path(directory)) as (bootstrap, broker),
        Worker(directory, shards) as worker,
        Client(worker.url, "trips") as client,
    ):
        make_topic(bootstrap, shards)
        place = {"bootstrap": bootstrap, "directory": directory, "shards": shards}
        client.put_cell(cells[0][0], "WARM_UP", 1, {})
        with Process(export, cells=1, until=len(cells) + 1, **place) as exporter:
            exporter.told()
            begun_s = time.monotonic()
            ready_s: float = exporter.told(READY_TIMEOUT_S) - begun_s
            idle = 100 * _cpu_share(exporter, idle_s, settle_s)
            with Process(consume_committed, records=len(cells) + 1, **place) as reader:
                reader.told(READY_TIMEOUT_S)
                time.sleep(settle_s)
                parts: tuple[Callable[[], float], ...] = (
                    exporter.cpu_seconds,
                    reader.cpu_seconds,
                    partial(_cpu_s, broker),
                )
                before = [each() for each in parts]
                sent = put_evenly(client, cells, PUTS_PER_S)
                received: dict[str, float] = reader.told(ARRIVAL_TIMEOUT_S)
                passages = passages_of(sent, received)
                committed: list[float] = exporter.told(ARRIVAL_TIMEOUT_S)
                behind_s = committed[-1] - max(each.acknowledged for each in passages)
                spent = [
                    (each() - began) * 1e3 / len(cells)
                    for each, began in zip(parts, before, strict=True)
                ]
    return _Run(ready_s, behind_s, idle, spent[0], spent[1], spent[2], passages, committed)


def _cpu_share(process: Process, idle_s: float, settle_s: float) -> float:
    time.sleep(settle_s)
    cpu_s, begun_s = process.cpu_seconds(), time.monotonic()
    time.sleep(idle_s)
    return (process.cpu_seconds() - cpu_s) / (time.monotonic() - begun_s)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
