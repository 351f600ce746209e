"""A store of cells, and readers of its blocks, that the tests of blocks share."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, TypeVar

from cellfeed.bridge.events.envelope import JsonFormat
from cellfeed.bridge.events.record_batch_reader import Record, decode_record_batches
from cellfeed.bridge.events.views import View
from cellfeed.bridge.gateway.log.batch import Batch
from cellfeed.bridge.gateway.topics.topics import make_topic
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import LogRange

T = TypeVar("T")

ALL = make_topic("trips", View(), JsonFormat())

ENDLESS = 1 << 40

EPOCH = 0


def fill(
    store: Datastore, count: int, column: Callable[[int], str] = lambda _: "BASE", body: str = ""
) -> None:
    start = store.heads()[0].watermark
    cells = [
        (uuid.uuid4(), column(number), 0, {"n": number, "text": body})
        for number in range(start, start + count)
    ]
    for first in range(0, count, 1_000):
        store.put_cells(cells[first : first + 1_000])


def run(use: Callable[[ThreadPoolExecutor], Coroutine[Any, Any, T]]) -> T:
    with ThreadPoolExecutor(4) as executor:
        return asyncio.run(use(executor))


def records(batches: list[Batch]) -> list[Record]:
    return list(decode_record_batches(b"".join(batch.data for batch in batches)))


def assert_contiguous(batches: list[Batch], offset: int, end: int) -> None:
    assert batches[0].start <= offset < batches[0].end
    assert all(before.end == after.start for before, after in pairwise(batches))
    assert batches[-1].end == end


class CountingEngine:
    """Counts how often each cell, by its place in its shard alone, and each range is read from the
    store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.read: dict[int, int] = {}
        self.ranges = 0
        self.scans_of_many = 0

    def scan(self, shard: int, location: int, limit: int) -> Any:
        self.ranges += 1
        cells = self._engine.scan(shard, location, limit)
        for cell in cells:
            if cell.added_id < location + limit:
                self.read[cell.added_id] = self.read.get(cell.added_id, 0) + 1
        return cells

    def commit_group(self, shard: int) -> str:
        return self._engine.commit_group(shard)

    def scan_many(self, ranges: Sequence[LogRange]) -> list[Any]:
        self.scans_of_many += 1
        return [self.scan(*each) for each in ranges]
