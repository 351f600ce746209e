"""Splits a put call of any size into bounded batches, each written whole or not at all. When a
later batch fails, the results of the earlier ones are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.errors import CellfeedError, StorageUnavailable
from cellfeed.store.limits import BATCH_BYTES_MAX, BATCH_CELLS_MAX


def put_in_batches(
    cells: Sequence[NewCell],
    put_batch: Callable[[Sequence[NewCell]], list[PutResult]],
    shard: Callable[[NewCell], int],
) -> list[PutResult]:
    """The results of all cells, in order. An error of the first batch is raised: nothing else is
    known then. An error of a later batch becomes the result of each of its cells, and the batches
    behind it are not begun. ``shard`` is asked only then."""
    results: list[PutResult] = []
    for batch in batches(cells):
        try:
            results += put_batch(batch)
        except CellfeedError as error:
            if not results:
                raise
            return results + results_from_failure(cells[len(results) :], len(batch), error, shard)
    return results


def results_from_failure(
    cells: Sequence[NewCell],
    failed: int,
    error: CellfeedError,
    shard: Callable[[NewCell], int],
) -> list[PutResult]:
    """Results of the cells from a batch on that ended with ``error``: its own are the first
    ``failed`` of ``cells``, and the batches behind it were not begun."""
    never_begun = StorageUnavailable(f"nothing written: an earlier part of the put failed: {error}")
    return [
        PutResult.of_error(error if index < failed else never_begun, shard(cell))
        for index, cell in enumerate(cells)
    ]


def batches(cells: Sequence[NewCell]) -> Iterator[Sequence[NewCell]]:
    """Cuts at ``BATCH_CELLS_MAX`` cells and about ``BATCH_BYTES_MAX`` bytes of bodies; a batch has
    at least one cell."""
    start = size = 0
    for index, cell in enumerate(cells):
        size += len(cell.body_json)
        if index - start == BATCH_CELLS_MAX or (size > BATCH_BYTES_MAX and index > start):
            yield cells[start:index]
            start, size = index, len(cell.body_json)
    if start < len(cells):
        yield cells[start:]
