"""The cost of each operation as an embedded store grows: 16 and 4,096 shards, random row keys.

``growth``: CPU of the process for a cell or a call; it is of all threads, so with checkpoints.
Bytes handed to the disk for a cell, the longest of the batch puts, the process's memory. Beside
each figure stands the same one at the smallest size; its limit is the part that the design allows
beside that. A size is reached by batch puts of 500 cells; the puts from the size before to this one
are measured.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

from benchmarks import Figure, at_most
from benchmarks._indexes import DEFINITION, trip
from cellfeed.store.cells.cell import NewCell, Triple, new_cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.index_values import EntrySelect
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.indexes.keeper import IndexKeeper
from cellfeed.store.indexes.values import encoder
from cellfeed.store.indexes.version import IndexVersion

SIZES: Final = (100_000, 1_000_000, 10_000_000)
SHARDS: Final = (16, 4_096)
CALLS: Final = 500
BATCH: Final = 500
"""Cells of a batch put."""

INDEX_BATCH: Final = 2_000

PUT_RATIO: Final = 1.5
WRITTEN_RATIO: Final = 2.0
RATIO: Final = 1.15
"""The bound for ten million cells beside 0.1 million."""

STALL_MS: Final = at_most(250)


@dataclass
class Spent:
    """The time and work that went by in :func:`measured`. ``longest_s``: of the calls noted, one by
    one."""

    cpu_s: float = 0.0
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


@contextmanager
def measured() -> Iterator[Spent]:
    """CPU of all threads, and bytes written, until the end of the block."""
    spent = Spent()
    cpu_s, written = time.process_time(), _of_process("io", "write_bytes")
    yield spent
    spent.cpu_s = time.process_time() - cpu_s - spent.apart_s
    spent.written_bytes = _of_process("io", "write_bytes") - written


def figures(
    sizes: Sequence[int] = SIZES, shards: Sequence[int] = SHARDS, calls: int = CALLS
) -> Iterator[Figure]:
    """Measures; see the module."""
    for count in shards:
        with tempfile.TemporaryDirectory() as directory:
            yield from _grown(Path(directory), count, sizes, calls)


def _grown(directory: Path, shards: int, sizes: Sequence[int], calls: int) -> Iterator[Figure]:
    first: dict[str, float] = {}
    here = 0
    for size in sizes:
        with Datastore.open_embedded(directory, "trips", shards) as store:
            found = _puts(store, here, size) | _calls(store, size, calls) | _index(store, size)
            found["memory, MiB"] = _of_process("status", "VmRSS") / 1024
        with measured() as opening, Datastore.open_embedded(directory, "trips", shards):
            pass
        found["open, ms"] = opening.cpu_s * 1e3
        here = size
        for what, value in found.items():
            name, unit = what.split(", ")
            beside = first.setdefault(what, value)
            limit = STALL_MS if name == "longest batch put" else at_most(beside * _ratio(name))
            yield Figure(
                f"growth {shards} shards {size:,} cells {name}",
                value,
                unit,
                f"at {sizes[0]:,}",
                beside,
                limit,
            )


def _ratio(name: str) -> float:
    if name.endswith("written"):
        return WRITTEN_RATIO
    return PUT_RATIO if name == "batch put" else RATIO


def _puts(store: Datastore, here: int, size: int) -> dict[str, float]:
    with measured() as spent:
        for start in range(here, size, BATCH):
            with spent.apart():
                cells = _cells(range(start, min(size, start + BATCH)))
            with spent.call():
                store.put_new_cells(cells)
    return {
        "batch put, µs/cell": spent.cpu_s * 1e6 / (size - here),
        "batch put written, KB/cell": spent.written_bytes / 1e3 / (size - here),
        "batch put median, ms": statistics.median(spent.calls_s) * 1e3,
        "longest batch put, ms": max(spent.calls_s) * 1e3,
    }


def _cells(numbers: Sequence[int]) -> list[NewCell]:
    return [new_cell(*trip(number)) for number in numbers]


def _calls(store: Datastore, size: int, calls: int) -> dict[str, float]:
    """CPU of single calls over rows drawn from all. A new row that is put is one that no growth
    puts."""
    chance = random.Random(size)
    some = [_cells([chance.randrange(size)])[0] for _ in range(calls)]
    triples = [Triple(cell.row_key, cell.column_name, cell.ref_key) for cell in some]
    new = [
        new_cell(UUID(int=chance.getrandbits(128)), "OTHER", 1, {"number": number})
        for number in range(calls)
    ]
    engine = store.engine
    now_us = time.time_ns() // 1000
    turns = range(calls)
    shards = [chance.randrange(store.shards) for _ in turns]
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
        with measured() as spent:
            for turn in turns:
                operation(turn)
        found[name] = spent.cpu_s * 1e6 / calls
    return found


def _index(store: Datastore, size: int) -> dict[str, float]:
    """An index of all cells, built as an index worker does, and asked."""
    version = IndexVersion(DEFINITION, size, store.shards)
    engine = store.engine
    assert isinstance(engine, SqliteEngine)
    engine.indexes.create(version.table)
    keeper = IndexKeeper(version, engine.indexes, engine.row_cells, new=True)
    with measured() as spent:
        for shard, head in store.heads().items():
            for location in range(head.log_start, head.watermark, INDEX_BATCH):
                keeper.apply(shard, engine.scan(shard, location, INDEX_BATCH))
        engine.indexes.complete(version.table)
    found = {
        "index build, µs/cell": spent.cpu_s * 1e6 / size,
        "index build written, KB/cell": spent.written_bytes / 1e3 / size,
    }
    encode = encoder(DEFINITION.fields[0].type)
    values = [encode(trip(number)[3]["driver"]) for number in range(min(CALLS, size))]
    asked = [
        EntrySelect(version.shard_of_value(value), value, (), 2, True, None, 10) for value in values
    ]
    with measured() as spent:
        for each in asked:
            engine.indexes.select(version.table, [each])
    found["index query of 10, µs/call"] = spent.cpu_s * 1e6 / len(asked)
    engine.indexes.drop(version.table)
    return found


def _of_process(file: str, name: str) -> int:
    """A number that the kernel gives for this process: bytes, or KiB of ``status``."""
    lines = Path(f"/proc/self/{file}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
