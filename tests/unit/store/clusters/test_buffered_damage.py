"""A put that meets a damaged body leaves nothing in the buffers: its answer says that nothing of it
is written. And no other cell waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

from cellfeed.store.cells.cell import NewCell, new_cell
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.clusters.serving.buffer import BufferedWriter
from cellfeed.store.clusters.serving.buffer_drain import BufferDrain
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.engines.contract.buffer import BufferCount, BufferedCell, BufferTable
from cellfeed.store.errors import DataDamaged

HURT, WELL = (new_cell(UUID(int=n), "BASE", 1, {}) for n in (1, 2))


def written(cells: Sequence[NewCell]) -> list[PutResult]:
    return [
        PutResult(Outcome.FAILED, 0, error=DataDamaged("hurt"))
        if cell == HURT
        else PutResult(Outcome.STORED, 0, 7)
        for cell in cells
    ]


class Table:
    """A buffer table that remembers the requests that it got."""

    def __init__(self, waiting: Sequence[BufferedCell] = ()) -> None:
        self.calls: list[tuple[str, Any]] = []
        self._waiting = list(waiting)

    def add(self, owner: str, cells: Sequence[NewCell]) -> None:
        self.calls.append(("add", list(cells)))

    def remove_copies(self, owner: str, cells: Sequence[NewCell]) -> None:
        self.calls.append(("remove_copies", list(cells)))

    def counts(self) -> list[BufferCount]:
        return [BufferCount("own", 3, 2, 0, 0)] if self._waiting else []

    def waiting(
        self, owner: str, after_id: int, limit: int, older_than_s: float
    ) -> list[BufferedCell]:
        return [each for each in self._waiting if each.buffer_id > after_id]

    def remove(self, ids: Sequence[int]) -> None:
        self.calls.append(("remove", list(ids)))

    def mark_conflict(self, buffer_id: int, reason: str) -> None:
        self.calls.append(("mark_conflict", buffer_id))


class Own:
    def put(self, cells: Sequence[NewCell]) -> list[PutResult]:
        return written(cells)

    def look(self) -> None: ...

    def replicated(self) -> dict[int, int]:
        return {0: 8}


def test_the_copies_of_a_put_that_failed_definitely_go() -> None:
    other = Table()
    writer = BufferedWriter(
        {"own": cast("BufferTable", Table()), "other": cast("BufferTable", other)},
        written,
        lambda _: 0,
    )
    assert [each.outcome for each in writer.put("own", [HURT, WELL])] == [
        Outcome.FAILED,
        Outcome.STORED,
    ]
    assert other.calls == [("add", [HURT, WELL]), ("remove_copies", [HURT])]


def test_the_drain_leaves_a_damaged_accepted_cell_to_an_operator_and_takes_the_others() -> None:
    table = Table(
        [
            BufferedCell(1, "own", HURT, 0, True),
            BufferedCell(2, "own", WELL, 0, True),
            BufferedCell(3, "own", HURT, 0, False),
        ]
    )
    own = Own()
    drain = BufferDrain(
        {"other": cast("BufferTable", table)}, lambda _: cast("Cluster", own), lambda _: 0
    )
    assert drain.drain_once() == 1
    assert table.calls == [("mark_conflict", 1), ("remove_copies", [HURT]), ("remove", [2])]
