"""The parts of the growth benchmarks: a meter of CPU and writes, and the operations measured."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol
from uuid import UUID

import psutil

from benchmarks._indexes import DEFINITION, trip
from cellfeed.store.cells.cell import NewCell, Triple, new_cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.index_values import EntrySelect
from cellfeed.store.engines.contract.indexes import IndexStore
from cellfeed.store.indexes.erased import RowCells
from cellfeed.store.indexes.keeper import IndexKeeper
from cellfeed.store.indexes.values import encoder
from cellfeed.store.indexes.version import IndexVersion

BATCH: Final = 500
"""Cells of a batch put."""

INDEX_BATCH: Final = 2_000

_INDEX_CALLS: Final = 500


@dataclass
class Spent:
    """The work that went by in :meth:`Meter.measured`. ``server_s``: that part of ``cpu_s`` which
    the server took. ``longest_s``: of the calls noted, one by one."""

    cpu_s: float = 0.0
    server_s: float = 0.0
    written_bytes: int = 0
    apart_s: float = 0.0
    calls_s: list[float] = field(default_factory=list)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Work of the benchmark itself, which does not count."""
        begun_s = time.thread_time()
        yield
        self.apart_s += time.thread_time() - begun_s

    @contextmanager
    def call(self) -> Iterator[None]:
        """One call, timed."""
        begun_s = time.monotonic()
        yield
        self.calls_s.append(time.monotonic() - begun_s)


class Meter:
    """Of this process, and of a server with the pid ``server`` beside it."""

    def __init__(self, server: int | None = None) -> None:
        self._server = server

    @contextmanager
    def measured(self) -> Iterator[Spent]:
        """CPU of all threads, and bytes written, until the end of the block."""
        spent = Spent()
        cpu_s, server_s, written = time.process_time(), self._server_s(), self._written()
        yield spent
        spent.server_s = self._server_s() - server_s
        spent.cpu_s = time.process_time() - cpu_s - spent.apart_s + spent.server_s
        spent.written_bytes = self._written() - written

    def memory_mib(self) -> float:
        """Resident, of the server where there is one."""
        return float(psutil.Process(self._server).memory_info().rss) / 2**20

    def _server_s(self) -> float:
        return 0.0 if self._server is None else time.clock_gettime(_cpu_clock(self._server))

    def _written(self) -> int:
        pids = ["self"] if self._server is None else ["self", str(self._server)]
        return sum(_written_bytes(Path(f"/proc/{pid}/io")) for pid in pids)


class IndexedEngine(Protocol):
    """The parts of an engine that an index is built with."""

    @property
    def indexes(self) -> IndexStore: ...

    @property
    def row_cells(self) -> RowCells: ...


def puts(meter: Meter, store: Datastore, here: int, size: int) -> dict[str, float]:
    """Puts the cells from number ``here`` to ``size`` in batches of ``BATCH``."""
    with meter.measured() as spent:
        for start in range(here, size, BATCH):
            with spent.apart():
                cells = _cells(range(start, min(size, start + BATCH)))
            with spent.call():
                store.put_new_cells(cells)
    found = {
        "batch put, µs/cell": spent.cpu_s * 1e6 / (size - here),
        "batch put written, KB/cell": spent.written_bytes / 1e3 / (size - here),
        "batch put median, ms": statistics.median(spent.calls_s) * 1e3,
        "longest batch put, ms": max(spent.calls_s) * 1e3,
    }
    if spent.server_s:
        found["batch put server, µs/cell"] = spent.server_s * 1e6 / (size - here)
    return found


def calls(meter: Meter, store: Datastore, size: int, count: int) -> dict[str, float]:
    """CPU of single calls over rows drawn from all. A new row that is put is one that no growth
    puts."""
    chance = random.Random(size)
    some = [_cells([chance.randrange(size)])[0] for _ in range(count)]
    triples = [Triple(cell.row_key, cell.column_name, cell.ref_key) for cell in some]
    new = [
        new_cell(UUID(int=chance.getrandbits(128)), "OTHER", 1, {"number": number})
        for number in range(count)
    ]
    engine = store.engine
    now_us = time.time_ns() // 1000
    shards = [chance.randrange(store.shards) for _ in range(count)]
    operations: dict[str, Callable[[int], object]] = {
        "put, µs/call": lambda turn: store.put_new_cells([new[turn]]),
        "put again, µs/call": lambda turn: store.put_new_cells([some[turn]]),
        "get, µs/call": lambda turn: engine.get([triples[turn]]),
        "latest, µs/call": lambda turn: engine.latest([triples[turn][:2]]),
        "row, µs/call": lambda turn: engine.row([some[turn].row_key]),
        "scan of 20 cells, µs/call": lambda turn: engine.scan(shards[turn], 0, 20),
        "location by time, µs/call": lambda turn: engine.locate(shards[turn], now_us),
        "heads, µs/call": lambda _: engine.heads(),
    }
    found = {}
    for name, operation in operations.items():
        operation(0)
        with meter.measured() as spent:
            for turn in range(count):
                operation(turn)
        found[name] = spent.cpu_s * 1e6 / count
    return found


def index(meter: Meter, store: Datastore, engine: IndexedEngine, size: int) -> dict[str, float]:
    """An index of all cells, built as an index worker does, and asked."""
    version = IndexVersion(DEFINITION, size, store.shards)
    engine.indexes.create(version.table)
    keeper = IndexKeeper(version, engine.indexes, engine.row_cells, new=True)
    with meter.measured() as spent:
        for shard, head in store.heads().items():
            for location in range(head.log_start, head.watermark, INDEX_BATCH):
                keeper.apply(shard, store.engine.scan(shard, location, INDEX_BATCH))
        engine.indexes.complete(version.table)
    found = {
        "index build, µs/cell": spent.cpu_s * 1e6 / size,
        "index build written, KB/cell": spent.written_bytes / 1e3 / size,
    }
    found["index query of 10, µs/call"] = _queries(meter, version, engine.indexes, size)
    engine.indexes.drop(version.table)
    return found


def _queries(meter: Meter, version: IndexVersion, indexes: IndexStore, size: int) -> float:
    encode = encoder(DEFINITION.fields[0].type)
    values = [encode(trip(number)[3]["driver"]) for number in range(min(_INDEX_CALLS, size))]
    asked = [
        EntrySelect(version.shard_of_value(value), value, (), 2, True, None, 10) for value in values
    ]
    with meter.measured() as spent:
        for each in asked:
            indexes.select(version.table, [each])
    return spent.cpu_s * 1e6 / len(asked)


def _cells(numbers: Sequence[int]) -> list[NewCell]:
    return [new_cell(*trip(number)) for number in numbers]


def _cpu_clock(pid: int) -> int:
    """The clock of a process's CPU time, as ``clock_getcpuclockid`` of Linux gives it: it counts
    nanoseconds, where ``/proc`` counts hundredths of a second."""
    return ~pid << 3 | 2


def _written_bytes(io: Path) -> int:
    """Bytes that a process handed to disks, by the kernel's count."""
    lines = io.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))
