"""The new cells of a put: their ids, and the pieces in which they are sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.engines.contract.repeated_cells import repeated
from cellfeed.store.engines.mysql.locked_counters import Counter

PIECE_CELLS: Final = 1_000
"""New cells from which on the ready ones are sent: some ten milliseconds of the server's time,
against a fraction of one for another packet."""


class NewRow(NamedTuple):
    """A cell to be written, and its id."""

    cell: NewCell
    added_id: int


def give_ids(
    cells: Sequence[NewCell],
    shards: Sequence[int],
    counters: Mapping[int, Counter],
    known: Sequence[PutResult | int | None],
) -> tuple[list[PutResult], dict[int, list[NewRow]]]:
    """The result of each cell, and by shard the cells that are to be written, in the order of their
    ids. Moves the counters."""
    results: list[PutResult] = []
    new: dict[int, list[NewRow]] = {}
    for cell, shard, before in zip(cells, shards, known, strict=True):
        if isinstance(before, PutResult):
            results.append(before)
        elif before is not None:
            results.append(repeated(cells[before], results[before], cell))
        else:
            counter = counters[shard]
            results.append(PutResult(Outcome.STORED, shard, counter.next_added_id))
            new.setdefault(shard, []).append(NewRow(cell, counter.next_added_id))
            counter.next_added_id += 1
    return results, new


def pieces(new: Mapping[int, Sequence[NewRow]]) -> list[dict[int, Sequence[NewRow]]]:
    """The shards' cells in pieces of ``PIECE_CELLS``, or up to a shard's more."""
    pieces: list[dict[int, Sequence[NewRow]]] = [{}]
    count = 0
    for shard, cells in new.items():
        if count >= PIECE_CELLS:
            pieces.append({})
            count = 0
        pieces[-1][shard] = cells
        count += len(cells)
    return pieces
