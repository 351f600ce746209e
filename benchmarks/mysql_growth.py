"""The cost of each operation as a store on one durable MariaDB server grows, by its buffer pool.

``mysql-growth``: as ``growth``; CPU is of the server and of this process together, ``server`` is
its part. Bytes written are those of both, so with the server's log, its doublewrite buffer and its
binary log. ``buffer pool`` in MiB is the memory in which the server has the pages of its tables.
The rows are those of ``growth``: 0.5 KB for a cell in the server's files, indexes among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks import Figure
from benchmarks._growth import Meter, calls, index, puts
from benchmarks._mariadb import mariadb
from benchmarks.growth import CALLS, grown_figures
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine

SIZES: Final = (100_000, 1_000_000)
SHARDS: Final = 16
POOLS_MIB: Final = (256, 2_048)
"""Smaller than the tables of a million cells, and larger."""


def figures(
    sizes: Sequence[int] = SIZES,
    shards: int = SHARDS,
    pools_mib: Sequence[int] = POOLS_MIB,
    count: int = CALLS,
) -> Iterator[Figure]:
    """Measures; see the module. Raises RuntimeError where no server can be had."""
    for pool in pools_mib:
        with mariadb(pool_mib=pool) as server:
            assert server.process is not None
            meter = Meter(server.process.pid)
            engine = MySqlEngine(MySqlServer(server.url), "trips", shards, create=True)
            with Datastore(engine) as store:
                first: dict[str, float] = {}
                here = 0
                for size in sizes:
                    found = puts(meter, store, here, size) | calls(meter, store, size, count)
                    found |= index(meter, store, engine, size)
                    found["memory, MiB"] = meter.memory_mib()
                    here = size
                    name = f"mysql-growth {pool:,} MiB buffer pool {size:,} cells"
                    yield from grown_figures(name, found, first, sizes[0])
