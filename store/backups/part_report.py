"""The report of a restore of a part: the cells by kind, and the first that were not restored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from cellfeed.store.cells.cell import NewCell, Triple
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.errors import CellConflict, CellfeedError, RowErased

PROBLEMS_MAX: Final = 100
"""Cells that a report names; the others it only counts."""


class Problem(NamedTuple):
    """A cell that the store does not have as the backup has it, and why."""

    triple: Triple
    error: CellfeedError

    def __str__(self) -> str:
        row_key, column_name, ref_key = self.triple
        why = (
            "the store has it with another body, which stays"
            if isinstance(self.error, CellConflict)
            else str(self.error)
        )
        return f"cell ({UUID(bytes=row_key)}, {column_name!a}, {ref_key}): {why}"


@dataclass
class Report:
    """The results for the cells of the part, by kind.

    ``stored``: those that the store lacked, put now; a dry run counts those that it would put.
    ``same``: there already. ``other``: there with another body. ``buffered``: accepted, while the
    master is away, and not readable yet. ``erased``: of rows that were erased. ``log_own``: see the
    module. ``failed``: not written. ``unknown``: perhaps written. ``not_reached``: cells of the
    backup's log that were not looked at, for the store did not answer.
    """

    stored: int = 0
    same: int = 0
    other: int = 0
    buffered: int = 0
    erased: int = 0
    log_own: int = 0
    failed: int = 0
    unknown: int = 0
    not_reached: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def cells(self) -> int:
        """Cells of the part that were looked at."""
        return sum(self.counts().values()) - self.not_reached

    @property
    def complete(self) -> bool:
        """Whether the store has, or may not have, each cell of the part."""
        return not (self.other or self.failed or self.unknown or self.not_reached)

    def counts(self) -> dict[str, int]:
        """By kind."""
        return {name: value for name, value in vars(self).items() if isinstance(value, int)}


def count(report: Report, cell: NewCell, result: PutResult) -> None:
    if isinstance(result.error, RowErased):
        report.erased += 1
        return
    name = _COUNTED_AS[result.outcome]
    setattr(report, name, getattr(report, name) + 1)
    if result.error is not None and len(report.problems) < PROBLEMS_MAX:
        report.problems.append(Problem(cell.triple, result.error))


_COUNTED_AS: Final = {
    Outcome.STORED: "stored",
    Outcome.EXISTS: "same",
    Outcome.BUFFERED: "buffered",
    Outcome.CONFLICT: "other",
    Outcome.FAILED: "failed",
    Outcome.UNKNOWN: "unknown",
}
