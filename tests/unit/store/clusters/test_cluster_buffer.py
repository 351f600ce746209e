"""Buffered puts against every outcome that tables and the own master can have: an answer is never
more certain than the stored copies (I1, I19)."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, cast

import pytest

from cellfeed.store.cells.cell import NewCell, Triple, new_cell
from cellfeed.store.cells.put_result import Outcome, PutResult, conflict_error, refused_as_erased
from cellfeed.store.clusters.serving.buffer import BufferedWriter
from cellfeed.store.clusters.serving.buffer_drain import BufferDrain
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.engines.contract.buffer import BufferCount, BufferedCell
from cellfeed.store.errors import CellfeedError, DataDamaged, OutcomeUnknown, StorageUnavailable

SHARD: Final = 0
ONE, TWO, OTHER = (
    new_cell(f"00000000-0000-0000-0000-00000000000{n}", "BASE", 1, {"n": n}) for n in (1, 2, 3)
)


class Call(StrEnum):
    """The fate of one write."""

    DONE = "done"
    FAILED = "definite failure"
    UNKNOWN_DONE = "unknown, and done"
    UNKNOWN_NOT_DONE = "unknown, and not done"

    @property
    def takes_place(self) -> bool:
        return self in (Call.DONE, Call.UNKNOWN_DONE)

    def or_raise(self) -> None:
        if self is Call.FAILED:
            raise StorageUnavailable("nothing written")
        if self is not Call.DONE:
            raise OutcomeUnknown("the commit's fate is not known")


class Own(StrEnum):
    """The fate of one cell in the own log."""

    STORED = "stored"
    CONFLICT = "conflict"
    ERASED = "the row was erased"
    FAILED = "definite failure"
    DAMAGED = "definite failure that buffering does not help"
    UNKNOWN_DONE = "unknown, and done"
    UNKNOWN_NOT_DONE = "unknown, and not done"

    def result(self, cell: NewCell) -> PutResult:
        if self is Own.STORED:
            return PutResult(Outcome.STORED, SHARD, 0)
        if self is Own.CONFLICT:
            return PutResult(Outcome.CONFLICT, SHARD, error=conflict_error(cell, 0))
        if self is Own.ERASED:
            return refused_as_erased(cell, SHARD)
        error = self.error()
        return PutResult(Outcome.FAILED if error.definite else Outcome.UNKNOWN, SHARD, error=error)

    def error(self) -> CellfeedError:
        if self is Own.DAMAGED:
            return DataDamaged("a page is damaged")
        return (
            StorageUnavailable("nothing written")
            if self is Own.FAILED
            else OutcomeUnknown("not known")
        )


@dataclass
class Table:
    """A buffer table in memory: the waiting cell, and whether it was accepted."""

    add_is: Call = Call.DONE
    accept_is: Call = Call.DONE
    rows: dict[Triple, BufferedCell] = field(default_factory=dict)
    adds: int = 0

    def add(self, owner: str, cells: Sequence[NewCell]) -> None:
        self.adds += 1
        if self.add_is.takes_place:
            for cell in cells:
                self.rows.setdefault(
                    cell.triple, BufferedCell(len(self.rows) + 1, owner, cell, 0, accepted=False)
                )
        self.add_is.or_raise()

    def accept(self, owner: str, cells: Sequence[NewCell]) -> list[bool]:
        same = [
            (row := self.rows.get(cell.triple)) is not None and row.cell.body_json == cell.body_json
            for cell in cells
        ]
        if self.accept_is.takes_place:
            for cell in (cell for cell, is_same in zip(cells, same, strict=True) if is_same):
                row = self.rows[cell.triple]
                self.rows[cell.triple] = BufferedCell(
                    row.buffer_id, owner, row.cell, 0, accepted=True
                )
        self.accept_is.or_raise()
        return same

    def waiting(
        self, owner: str, after_id: int, limit: int, older_than_s: float
    ) -> list[BufferedCell]:
        return [
            row for row in self.rows.values() if row.buffer_id > after_id and row.conflict is None
        ]

    def remove(self, buffer_ids: Sequence[int]) -> None:
        self.rows = {
            triple: row for triple, row in self.rows.items() if row.buffer_id not in buffer_ids
        }

    def remove_copies(self, owner: str, cells: Sequence[NewCell]) -> None:
        for cell in cells:
            if (
                (row := self.rows.get(cell.triple)) is not None
                and not row.accepted
                and row.cell.body_json == cell.body_json
            ):
                del self.rows[cell.triple]

    def remove_row(self, owner: str, row_key: bytes) -> None:
        self.rows = {
            triple: row for triple, row in self.rows.items() if row.cell.row_key != row_key
        }

    def mark_conflict(self, buffer_id: int, reason: str) -> None:
        self.rows = {
            triple: BufferedCell(row.buffer_id, row.owner, row.cell, 0, row.accepted, reason)
            if row.buffer_id == buffer_id
            else row
            for triple, row in self.rows.items()
        }

    def counts(self) -> list[BufferCount]:
        accepted = sum(row.accepted for row in self.rows.values())
        conflicts = sum(row.conflict is not None for row in self.rows.values())
        return [BufferCount("own", len(self.rows), accepted, conflicts, 0)] if self.rows else []


class OwnLog:
    """The own cluster: the fate of each cell, whether a group fails as a whole, and the cells of
    the log afterwards."""

    name = "own"

    def __init__(self, becomes: Sequence[Own], *, whole: bool) -> None:
        self._becomes, self._whole = becomes, whole
        self.log = set[NewCell]()

    def write(self, cells: Sequence[NewCell]) -> list[PutResult]:
        self.log |= {
            cell
            for cell, own in zip(cells, self._becomes, strict=True)
            if own in (Own.STORED, Own.UNKNOWN_DONE)
        }
        if self._whole:
            raise self._becomes[0].error()
        return [own.result(cell) for cell, own in zip(cells, self._becomes, strict=True)]


def own_logs() -> Iterator[OwnLog]:
    for pair in itertools.product(Own, Own):
        yield OwnLog(pair, whole=False)
    for own in (Own.FAILED, Own.DAMAGED, Own.UNKNOWN_DONE, Own.UNKNOWN_NOT_DONE):
        yield OwnLog([own, own], whole=True)


def tables() -> Iterator[dict[str, Table]]:
    """Each table's two calls, with one other cluster and with two; the second may hold another body
    of the first cell already."""
    calls = list(itertools.product(Call, Call))
    for add_is, accept_is in calls:
        yield {"x": Table(add_is, accept_is)}
    another = NewCell(ONE.row_key, ONE.column_name, ONE.ref_key, b'{"n":99}')
    for (x, y), waits in itertools.product(itertools.product(calls, calls), [False, True]):
        rows = {another.triple: BufferedCell(1, "own", another, 0, accepted=True)} if waits else {}
        yield {"x": Table(*x), "y": Table(*y, rows)}


def test_no_answer_is_more_certain_than_the_buffers_state(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "cellfeed.buffer")  # each table that fails is warned of
    cases = 0
    for copies in (1, 2):
        for own, others in itertools.product(own_logs(), tables()):
            # Values are made afresh for each case: both sides are written to.
            own = OwnLog(own._becomes, whole=own._whole)
            others = {
                name: Table(table.add_is, table.accept_is, dict(table.rows))
                for name, table in others.items()
            }
            _check_put(own, others, copies)
            cases += 1
    assert cases == 2 * (49 + 4) * (16 + 2 * 256)


def _check_put(own: OwnLog, others: dict[str, Table], copies: int) -> None:
    cells = [ONE, TWO]
    writer = BufferedWriter(
        {"own": Table(), **others}, own.write, lambda _: SHARD, copies, random.Random(7)
    )
    case = (own._becomes, own._whole, others, copies)
    try:
        results = writer.put("own", cells)
    except CellfeedError as error:
        results = [
            PutResult(Outcome.FAILED if error.definite else Outcome.UNKNOWN, SHARD, error=error)
            for _ in cells
        ]
    for cell, result, became in zip(cells, results, own._becomes, strict=True):
        held = [
            row
            for table in others.values()
            if (row := table.rows.get(cell.triple)) is not None and row.cell == cell
        ]
        assert (result.error is None) == result.acknowledged, case
        if result.outcome in (Outcome.STORED, Outcome.EXISTS):
            assert cell in own.log, case
        elif result.outcome is Outcome.BUFFERED:
            assert any(row.accepted for row in held), case
        elif result.outcome is Outcome.CONFLICT:
            assert became is Own.CONFLICT, case
            assert cell not in own.log, case
        elif became is Own.ERASED:
            assert result.outcome is Outcome.FAILED, case
        elif result.outcome is Outcome.FAILED:
            assert cell not in own.log, case
            assert not held, f"answered `failed`, and there, or written by the drain later: {case}"
        else:
            assert result.error is not None, case
            assert not result.error.definite, case
            certain = not any(
                table.adds and table.add_is is not Call.FAILED for table in others.values()
            )
            assert not certain or became not in (Own.FAILED, Own.DAMAGED), (
                f"nothing was written anywhere: {case}"
            )
            assert became is not Own.STORED, case


class AcceptedMeanwhile(Table):
    """The put that a copy belongs to is answered ``buffered`` after the drain has read the copy."""

    def waiting(
        self, owner: str, after_id: int, limit: int, older_than_s: float
    ) -> list[BufferedCell]:
        read = super().waiting(owner, after_id, limit, older_than_s)
        self.accept(owner, [row.cell for row in read])
        return read


class Conflicting:
    """A cluster whose log has another body for every cell."""

    def put(self, cells: Sequence[NewCell]) -> list[PutResult]:
        return [Own.CONFLICT.result(cell) for cell in cells]

    def look(self) -> None:
        pass

    def replicated(self) -> dict[int, int]:
        return {SHARD: 100}


@pytest.mark.parametrize(("table", "left"), [(Table(), 0), (AcceptedMeanwhile(), 1)])
def test_a_copy_in_conflict_that_was_accepted_meanwhile_is_kept_for_a_person_to_decide(
    table: Table, left: int
) -> None:
    table.add("own", [OTHER])
    drain = BufferDrain({"x": table}, lambda _: Conflicting(), lambda _: SHARD)  # type: ignore[arg-type, return-value]
    drain.drain_once(0)
    assert len(table.rows) == left, "an acknowledged cell is not dropped"
    drain.drain_once(0)
    assert [(row.accepted, row.conflict is not None) for row in table.rows.values()] == [
        (True, True)
    ] * left


class Damaged(Table):
    def waiting(
        self, owner: str, after_id: int, limit: int, older_than_s: float
    ) -> list[BufferedCell]:
        raise DataDamaged("a copy does not decode")


def test_a_table_that_is_damaged_keeps_no_other_from_being_drained() -> None:
    damaged, well = Damaged(), Table()
    for table in (damaged, well):
        table.add("own", [OTHER])
    drain = BufferDrain(
        {"x": damaged, "y": well}, lambda _: cast("Cluster", Conflicting()), lambda _: SHARD
    )
    assert drain.drain_once(0) == 0
    assert (len(damaged.rows), len(well.rows)) == (1, 0)
