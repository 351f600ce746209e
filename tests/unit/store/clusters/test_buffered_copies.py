"""Copies of puts on other clusters: the copies that are removed, those that are kept for a person,
and the puts that may be answered ``buffered``. Tables and clusters are values here."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import cast
from uuid import UUID

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.clusters.serving.buffer import BufferedWriter
from cellfeed.store.clusters.serving.buffer_drain import BufferDrain
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.engines.contract.buffer import BufferCount, BufferedCell, BufferTable
from cellfeed.store.errors import CellConflict, RowErased, StorageUnavailable


def cell(number: int, body: bytes = b"{}") -> NewCell:
    return NewCell(UUID(int=number).bytes, "BASE", 1, body)


class Table:
    """A buffer table in memory, as :class:`cellfeed.store.engines.contract.buffer.BufferTable`
    says."""

    def __init__(self) -> None:
        self.rows: dict[int, BufferedCell] = {}
        self.conflicts: dict[int, str] = {}

    def add(self, owner: str, cells: Sequence[NewCell]) -> list[int]:
        for each in cells:
            if all(row.cell.triple != each.triple for row in self.rows.values()):
                number = len(self.rows) + 1
                self.rows[number] = BufferedCell(number, owner, each, 0, accepted=False)
        return [
            next(number for number, row in self.rows.items() if row.cell.triple == each.triple)
            for each in cells
        ]

    def accept(self, owner: str, cells: Sequence[NewCell]) -> list[bool]:
        same = []
        for each in cells:
            number, row = next(
                (number, row) for number, row in self.rows.items() if row.cell.triple == each.triple
            )
            same.append(row.cell.body_json == each.body_json)
            if same[-1]:
                self.rows[number] = BufferedCell(number, owner, row.cell, 0, accepted=True)
        return same

    def waiting(
        self, owner: str, after_id: int, limit: int, older_than_s: float
    ) -> list[BufferedCell]:
        assert (owner, older_than_s) == ("c1", 0)
        return [
            row
            for number, row in sorted(self.rows.items())
            if number > after_id and number not in self.conflicts
        ][:limit]

    def remove(self, buffer_ids: Sequence[int]) -> None:
        for number in buffer_ids:
            del self.rows[number]

    def remove_copies(self, owner: str, cells: Sequence[NewCell]) -> None:
        self.rows = {
            number: row
            for number, row in self.rows.items()
            if row.accepted or (row.owner, row.cell) not in [(owner, each) for each in cells]
        }

    def mark_conflict(self, buffer_id: int, reason: str) -> None:
        self.conflicts[buffer_id] = reason

    def counts(self) -> list[BufferCount]:
        return [BufferCount("c1", len(self.rows), 0, 0, 0)] if self.rows else []


class Own:
    """The own cluster: its minions hold the ids below ``replicated``."""

    def __init__(self, results: Sequence[PutResult], held: int) -> None:
        self.results = results
        self.held = held

    def put(self, cells: Sequence[NewCell]) -> list[PutResult]:
        return list(self.results[: len(cells)])

    def look(self) -> None:
        """Knows already."""

    def replicated(self) -> dict[int, int]:
        return {0: self.held}


def drained(table: Table, own: Own) -> int:
    drain = BufferDrain(
        {"c2": cast("BufferTable", table)}, lambda _shard: cast("Cluster", own), lambda _cell: 0
    )
    return drain.drain_once(older_than_s=0)


def test_a_buffered_copy_goes_only_when_a_minion_of_its_own_cluster_has_the_cell() -> None:
    table = Table()
    table.add("c1", [cell(1), cell(2)])
    own = Own([PutResult(Outcome.STORED, 0, 6), PutResult(Outcome.EXISTS, 0, 5)], held=6)
    assert drained(table, own) == 1
    assert [row.cell for row in table.rows.values()] == [cell(1)]
    own.held = 7
    assert drained(table, own) == 1
    assert not table.rows


def test_an_accepted_cell_that_conflicts_is_kept_and_marked_and_a_mere_copy_goes() -> None:
    table = Table()
    table.add("c1", [cell(1), cell(2)])
    table.accept("c1", [cell(2)])
    conflict = PutResult(Outcome.CONFLICT, 0, error=CellConflict("another body is stored"))
    assert drained(table, Own([conflict, conflict], held=0)) == 0
    assert [row.cell for row in table.rows.values()] == [cell(2)]
    assert list(table.conflicts.values()) == ["another body is stored"]


def test_buffered_cells_of_an_erased_row_are_removed_accepted_or_not() -> None:
    table = Table()
    table.add("c1", [cell(1)])
    table.accept("c1", [cell(1)])
    assert (
        drained(table, Own([PutResult(Outcome.FAILED, 0, error=RowErased("erased"))], held=0)) == 1
    )
    assert not table.rows


def test_a_second_body_of_a_triple_that_waits_is_never_buffered() -> None:
    def away(_cells: Sequence[NewCell]) -> list[PutResult]:
        raise StorageUnavailable("the master is away")

    tables = {"c1": cast("BufferTable", Table()), "c2": cast("BufferTable", Table())}
    writer = BufferedWriter(tables, away, lambda _cell: 0, chance=random.Random(1))
    [first] = writer.put("c1", [cell(1, b'{"a":1}')])
    [second] = writer.put("c1", [cell(1, b'{"a":2}')])
    [again] = writer.put("c1", [cell(1, b'{"a":1}')])
    assert (first.outcome, again.outcome) == (Outcome.BUFFERED, Outcome.BUFFERED)
    assert second.outcome is not Outcome.BUFFERED
    assert second.error is not None
