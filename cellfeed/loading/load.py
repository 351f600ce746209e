"""Records of a file into a datastore. Loading the same file again changes nothing; a load that was
cut off is finished by running it again.

There is no progress file: puts are idempotent, so the store itself knows its cells. A cell whose
triple is stored with another body is a conflict: it is reported with its line and never overwrites
anything.

Several batches are under way at a time, but never two with cells of one row. So the cells of a row
come into its log in the order of the file. Of two lines with one triple the first counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from cellfeed.loading.report import LoadReport
from cellfeed.loading.spec import FileCells, LineCell, LoadSpec, cells_of_file
from cellfeed.store.api import CellStore
from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.errors import CellfeedError
from cellfeed.store.limits import BATCH_BYTES_MAX

LOAD_BATCH_CELLS: Final = 1_000
"""Cells put in one call: enough to spread the cost of a commit, small enough for a lively progress
bar. A batch of large bodies ends at ``BATCH_BYTES_MAX``."""

IN_FLIGHT: Final = 3
"""Batches under way: one is made ready and one answered while another is written."""

OnProgress = Callable[[LoadReport], None]
"""Called after every batch with the report so far; ``read_bytes`` goes up to the size of the
file."""


class _Batch(NamedTuple):
    lines: list[LineCell]
    row_keys: frozenset[object]
    results: Future[list[PutResult]]


def load_file(
    path: Path,
    store: CellStore,
    spec: LoadSpec,
    on_progress: OnProgress | None = None,
    *,
    max_errors: int | None = None,
    report: LoadReport | None = None,
) -> LoadReport:
    """Loads a file. Raises InvalidRequest or NotFound before anything is put when file or spec
    cannot be used at all; Unavailable when the store cannot be reached, after which the same load
    can be run again. Everything else is in the report."""
    return load_cells(
        cells_of_file(Path(path), spec), store, on_progress, max_errors=max_errors, report=report
    )


def load_cells(
    cells: FileCells | Iterable[LineCell],
    store: CellStore,
    on_progress: OnProgress | None = None,
    *,
    max_errors: int | None = None,
    report: LoadReport | None = None,
) -> LoadReport:
    """Puts a stream of cells and counts the outcomes, in the order of the lines.

    ``max_errors``: after more errors than these no further batch is put, and the load waits for
    those under way. ``report``: receives the counts, also of a load that raises.
    """
    report = LoadReport() if report is None else report
    under_way: deque[_Batch] = deque()
    stopped = False
    with ThreadPoolExecutor(IN_FLIGHT, "load") as threads:
        try:
            for lines in _batches(iter(cells)):
                row_keys = frozenset(line.cell.row_key for line in lines if line.cell is not None)
                while len(under_way) >= IN_FLIGHT or any(
                    not row_keys.isdisjoint(batch.row_keys) for batch in under_way
                ):
                    _count(under_way.popleft(), report, on_progress)
                if stopped := max_errors is not None and report.errors > max_errors:
                    break
                to_put = [line.cell for line in lines if line.cell is not None]
                under_way.append(_Batch(lines, row_keys, threads.submit(store.put_cells, to_put)))
        finally:
            _count_all(under_way, report, on_progress)
    if stopped:
        report.stopped_behind = report.last_line
    return report


def _count_all(
    under_way: deque[_Batch], report: LoadReport, on_progress: OnProgress | None
) -> None:
    """Counts every batch; raises the first error of one afterwards."""
    first: CellfeedError | None = None
    while under_way:
        try:
            _count(under_way.popleft(), report, on_progress)
        except CellfeedError as error:
            first = first or error
    if first:
        raise first


def _count(batch: _Batch, report: LoadReport, on_progress: OnProgress | None) -> None:
    results = iter(batch.results.result())
    for line in batch.lines:
        if line.cell is None:
            report.add(line.line, Outcome.FAILED, line.error)
        else:
            result = next(results)
            report.add(line.line, result.outcome, result.error)
    report.read_bytes = batch.lines[-1].read_bytes
    if on_progress:
        on_progress(report)


def _batches(cells: Iterator[LineCell]) -> Iterator[list[LineCell]]:
    batch: list[LineCell] = []
    size = 0
    for line in cells:
        batch.append(line)
        if isinstance(line.cell, NewCell):
            size += len(line.cell.body_json)
        if len(batch) == LOAD_BATCH_CELLS or size > BATCH_BYTES_MAX:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
