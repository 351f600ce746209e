"""The first load of a lake's table: cells a second of one loader from a gateway, for Iceberg and
Delta, with its memory; and beside it the plain writing of the same rows as Parquet by pyarrow.

``CELLS`` taxi cells are in 16 shards. Gateway and loader are processes of their own on one machine,
with settings as they come. Figures are medians of ``RUNS`` runs of each, in turns.
Time runs from the loader's first assignment to the last commit: its start is not in it. The limit
is the declared rate for a process.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks import Figure, at_least, at_most
from benchmarks.put_http import taxi_cells
from cellfeed.bridge.events.decoded_event import DecodedEvent
from cellfeed.consumers.lake.cell_columns import CellColumns
from cellfeed.store.datastore import Datastore
from tests.support.running_gateway import REPOSITORY, GatewayProcess

CELLS = 500_000
RUNS = 3
PUT_CELLS = 5_000
CELLS_PER_S = 60_000
MEMORY_MIB = 500


def figures(cells: int = CELLS, runs: int = RUNS) -> Iterator[Figure]:
    """Measures; see the module."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        with Datastore.open_embedded(folder / "store") as store:
            made = taxi_cells(cells)
            for start in range(0, cells, PUT_CELLS):
                store.put_cells(made[start : start + PUT_CELLS])
            plain = statistics.median(_plain(store, folder / f"plain-{n}") for n in range(runs))
        loads: dict[str, list[dict[str, float]]] = {"iceberg": [], "delta": []}
        with GatewayProcess(folder / "store", folder / "log", formats={}) as gateway:
            for run in range(runs):
                for kind, done in loads.items():
                    done.append(_load(gateway.bootstrap, kind, folder / f"{kind}-{run}", cells))
    for kind, done in loads.items():
        yield Figure(
            f"lake-load {kind}",
            statistics.median(each["per_s"] for each in done),
            "cells/s",
            beside="pyarrow writes the same rows as Parquet",
            beside_figure=plain,
            limit=at_least(CELLS_PER_S),
        )
        yield Figure(
            f"lake-load {kind}, memory",
            statistics.median(each["memory_mib"] for each in done),
            "MiB",
            limit=at_most(MEMORY_MIB),
        )


def _plain(store: Datastore, folder: Path) -> float:
    """Rows a second of pyarrow, with the rows in memory as Python's objects before."""
    from cellfeed.store.cells.body_codec import decode_body

    rows = [
        DecodedEvent(
            shard,
            cell.added_id,
            cell.row_key,
            cell.column_name,
            cell.ref_key,
            cell.created_at_us,
            decode_body(cell.body),
        )
        for shard in range(store.shards)
        for cell in store.engine.scan(shard, 0, 1 << 20)
    ]
    folder.mkdir()
    begun, columns = time.perf_counter(), CellColumns()
    for row in rows:
        columns.add(row)
    for day, table in columns.days():
        pq.write_table(table, folder / f"{day}.parquet", compression="zstd")
    return len(rows) / (time.perf_counter() - begun)


def _load(bootstrap: str, kind: str, folder: Path, cells: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks._lake_process", bootstrap, kind, str(folder)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    if found["rows"] != cells:
        raise RuntimeError(f"{found['rows']} of {cells} rows were loaded: {done.stderr[-500:]}")
    return found
