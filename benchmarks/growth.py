"""The cost of each operation as an embedded store grows: 16 and 4,096 shards, random row keys.

``growth``: CPU of the process for a cell or a call; it is of all threads, so with checkpoints.
Bytes handed to the disk for a cell, the longest of the batch puts, the process's memory. Beside
each figure stands the same one at the smallest size; its limit is the part that the design allows
beside that. A size is reached by batch puts of 500 cells; the puts from the size before to this one
are measured.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks import Figure, at_most
from benchmarks._growth import Meter, calls, index, puts
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.sqlite.engine import SqliteEngine

SIZES: Final = (100_000, 1_000_000, 10_000_000)
SHARDS: Final = (16, 4_096)
CALLS: Final = 500

PUT_RATIO: Final = 1.5
WRITTEN_RATIO: Final = 2.0
RATIO: Final = 1.15
"""The bound for ten million cells beside 0.1 million."""

STALL_MS: Final = at_most(250)


def figures(
    sizes: Sequence[int] = SIZES, shards: Sequence[int] = SHARDS, calls: int = CALLS
) -> Iterator[Figure]:
    """Measures; see the module."""
    for count in shards:
        with tempfile.TemporaryDirectory() as directory:
            yield from _grown(Path(directory), count, sizes, calls)


def _grown(directory: Path, shards: int, sizes: Sequence[int], count: int) -> Iterator[Figure]:
    meter = Meter()
    first: dict[str, float] = {}
    here = 0
    for size in sizes:
        with Datastore.open_embedded(directory, "trips", shards) as store:
            engine = store.engine
            assert isinstance(engine, SqliteEngine)
            found = puts(meter, store, here, size) | calls(meter, store, size, count)
            found |= index(meter, store, engine, size)
            found["memory, MiB"] = meter.memory_mib()
        with meter.measured() as opening, Datastore.open_embedded(directory, "trips", shards):
            pass
        found["open, ms"] = opening.cpu_s * 1e3
        here = size
        yield from grown_figures(f"growth {shards} shards {size:,} cells", found, first, sizes[0])


def grown_figures(
    name: str, found: Mapping[str, float], first: dict[str, float], smallest: int
) -> Iterator[Figure]:
    """A figure of each thing found, beside that of the ``smallest`` size, which ``first`` keeps."""
    for what, value in found.items():
        thing, unit = what.split(", ")
        beside = first.setdefault(what, value)
        limit = STALL_MS if thing == "longest batch put" else at_most(beside * _ratio(thing))
        yield Figure(f"{name} {thing}", value, unit, f"at {smallest:,}", beside, limit)


def _ratio(name: str) -> float:
    if name.endswith("written"):
        return WRITTEN_RATIO
    return PUT_RATIO if name.startswith("batch put") else RATIO
