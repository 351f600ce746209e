"""``cellfeed load`` beside reading the file alone.

The taxi trips that the product ships, are repeated under other row keys. They are loaded as CSV,
NDJSON and Parquet into the embedded store through a worker, a process of its own. ``own CPU`` is
the processor time of the loading process: types inferred, keys made from five fields, canonical
JSON, requests and their answers. The rate is by the clock, with the worker beside it. Beside each:
the file read into Python values and nothing else, by ``csv.reader``, ``json.loads`` or pyarrow.
Runs are interleaved; the figures are medians.
"""

from __future__ import annotations

import csv
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from benchmarks import Figure, at_least
from benchmarks._processes import Worker
from cellfeed.loading.load import load_file
from cellfeed.loading.spec import LoadSpec
from cellfeed.loading.taxi import TRIP_NAME_FIELDS, shipped_csv
from cellfeed.store.http.client import Client

ROWS = 64_330
"""Ten times the taxi trips."""
RUNS = 3
RATES: Final = {"parquet": at_least(40_000), "csv": at_least(30_000), "ndjson": at_least(30_000)}
"""Rows a second of the loading process' own CPU."""

SPEC: Final = LoadSpec("BASE", row_key_from=(*TRIP_NAME_FIELDS, "copy"))


def figures(rows: int = ROWS, runs: int = RUNS) -> Iterator[Figure]:
    """Measures; see the module."""
    with tempfile.TemporaryDirectory() as folder:
        files = write_files(Path(folder), rows)
        cpu: dict[str, list[float]] = {kind: [] for kind in files}
        wall: dict[str, list[float]] = {kind: [] for kind in files}
        beside: dict[str, list[float]] = {kind: [] for kind in files}
        for run in range(runs):
            for kind, file in files.items():
                cpu_s, wall_s = _load(file, Path(folder) / f"store-{kind}-{run}", rows)
                cpu[kind].append(rows / cpu_s)
                wall[kind].append(rows / wall_s)
                beside[kind].append(rows / _cpu_seconds(partial(READ[kind], file)))
        for kind, limit in RATES.items():
            yield Figure(
                f"load {kind}, own CPU",
                statistics.median(cpu[kind]),
                "rows/s",
                "reading the file alone",
                statistics.median(beside[kind]),
                limit,
            )
            yield Figure(f"load {kind}", statistics.median(wall[kind]), "rows/s")


def write_files(folder: Path, rows: int) -> dict[str, Path]:
    """The same trips in the three formats, by the format's name."""
    files = {kind: folder / f"trips.{kind}" for kind in RATES}
    with shipped_csv().open(newline="") as lines:
        header, *trips = csv.reader(lines)
    with files["csv"].open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow([*header, "copy"])
        for number in range(rows):
            writer.writerow([*trips[number % len(trips)], number // len(trips)])
    table = pa_csv.read_csv(
        files["csv"], convert_options=pa_csv.ConvertOptions(strings_can_be_null=False)
    )
    pq.write_table(table, files["parquet"])
    with files["ndjson"].open("w") as out:
        for record in table.to_pylist():
            out.write(json.dumps(record, default=str) + "\n")
    return files


def _load(file: Path, store: Path, rows: int) -> tuple[float, float]:
    """CPU and wall seconds of one load into a store of its own."""
    with Worker(store) as worker, Client(worker.url, "trips") as client:
        client.heads()
        began_s = time.perf_counter()
        cpu_s = _cpu_seconds(lambda: _checked(load_file(file, client, SPEC).stored, rows))
        return cpu_s, time.perf_counter() - began_s


def _checked(stored: int, rows: int) -> None:
    if stored != rows:
        raise AssertionError(f"{stored} of {rows} rows are stored")


def _cpu_seconds(work: Callable[[], object]) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def _read_csv(file: Path) -> int:
    with file.open(newline="") as lines:
        return sum(1 for _ in csv.reader(lines))


def _read_ndjson(file: Path) -> int:
    with file.open("rb") as lines:
        return sum(1 for line in lines if json.loads(line))


def _read_parquet(file: Path) -> int:
    return sum(len(batch.to_pylist()) for batch in pq.ParquetFile(file).iter_batches(1_000))


READ: Final[dict[str, Callable[[Path], int]]] = {
    "parquet": _read_parquet,
    "csv": _read_csv,
    "ndjson": _read_ndjson,
}
