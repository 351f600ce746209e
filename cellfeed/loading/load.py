"""Records of a file into a datastore. Loading the same file again changes nothing; a load that was
cut off is finished by running it again.

There is no progress file: puts are idempotent, so the store itself knows what it has. A cell whose
triple is stored with another body is a conflict: it is reported with its line and never overwrites
anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from cellfeed.loading.records import FileFormat, Record, check_field_types, format_of, read_records
from cellfeed.loading.row_keys import row_key_from
from cellfeed.store.api import CellStore, CellToPut
from cellfeed.store.cells.cell import Outcome, check_new_column, check_ref_key
from cellfeed.store.errors import CellfeedError, InvalidRefKey, InvalidRequest, InvalidRowKey

LOAD_BATCH_CELLS: Final = 1_000
"""Cells put in one call: enough to spread the cost of a commit, small enough for a lively progress
bar."""

PROBLEMS_MAX: Final = 100
"""Problems that a report keeps word for word; the rest is only counted."""


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """How records become cells: the whole record is the body; exactly one of ``row_key`` and
    ``row_key_from`` says where the row key comes from.

    ``row_key``: the field that holds a UUID. ``row_key_from``: the fields whose values make one
    (:mod:`cellfeed.loading.row_keys`). ``ref_key``: a number for all cells, or the name of the
    field that holds it.
    """

    column: str
    row_key: str | None = None
    row_key_from: Sequence[str] = ()
    ref_key: int | str = 1
    file_format: FileFormat | None = None
    field_types: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raises InvalidRequest when the parts do not go together."""
        check_new_column(self.column)
        check_field_types(self.field_types)
        if (self.row_key is None) == (not self.row_key_from):
            raise InvalidRequest(
                "say where the row key comes from: either one field that holds it, or the fields"
                " that it is made from"
            )
        if isinstance(self.ref_key, int):
            check_ref_key(self.ref_key)

    def cell(self, fields: Mapping[str, Any]) -> CellToPut:
        """The cell of one record. Raises InvalidRowKey or InvalidRefKey."""
        row_key = (
            row_key_from(fields, self.row_key_from)
            if self.row_key is None
            else _row_key(fields, self.row_key)
        )
        return CellToPut(
            row_key,
            self.column,
            self.ref_key if isinstance(self.ref_key, int) else _ref_key(fields, self.ref_key),
            fields,
        )


class Problem(NamedTuple):
    """A line that is not in the store as the file has it, and why."""

    line: int
    outcome: Outcome
    error: CellfeedError


class LineCell(NamedTuple):
    """A cell to be put and the line it comes from; ``cell`` is None where ``error`` says why there
    is none."""

    line: int
    cell: CellToPut | None
    read_bytes: int
    error: CellfeedError | None = None


@dataclass(slots=True)
class LoadReport:
    """What became of the cells of a load. ``failed`` cells were not written, ``unknown`` ones may
    have been: running the load again tells."""

    stored: int = 0
    exists: int = 0
    buffered: int = 0
    conflicts: int = 0
    failed: int = 0
    unknown: int = 0
    read_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def cells(self) -> int:
        """Cells looked at so far."""
        return (
            self.stored + self.exists + self.buffered + self.conflicts + self.failed + self.unknown
        )

    @property
    def complete(self) -> bool:
        """Whether every line is in the store as the file has it."""
        return not (self.conflicts or self.failed or self.unknown)

    def as_json(self) -> dict[str, Any]:
        """The report for ``--json``."""
        counts = {
            name: getattr(self, name)
            for name in ("stored", "exists", "buffered", "conflicts", "failed", "unknown")
        }
        problems = [
            {"line": problem.line, "outcome": problem.outcome.value, **problem.error.as_json()}
            for problem in self.problems
        ]
        return {**counts, "cells": self.cells, "complete": self.complete, "problems": problems}

    def add(self, line: int, outcome: Outcome, error: CellfeedError | None) -> None:
        """Counts one cell."""
        name = _COUNTED_AS[outcome]
        setattr(self, name, getattr(self, name) + 1)
        if error is not None and len(self.problems) < PROBLEMS_MAX:
            self.problems.append(Problem(line, outcome, error))


_COUNTED_AS: Final = {
    Outcome.STORED: "stored",
    Outcome.EXISTS: "exists",
    Outcome.BUFFERED: "buffered",
    Outcome.CONFLICT: "conflicts",
    Outcome.FAILED: "failed",
    Outcome.UNKNOWN: "unknown",
}

OnProgress = Callable[[LoadReport], None]
"""Called after every batch with the report so far; ``read_bytes`` goes up to the size of the
file."""


def load_file(
    path: Path, store: CellStore, spec: LoadSpec, on_progress: OnProgress | None = None
) -> LoadReport:
    """Loads a file. Raises InvalidRequest or NotFound before anything is put when file or spec
    cannot be used at all; Unavailable when the store cannot be reached, after which the same load
    can be run again. Everything else is in the report."""
    spec.check()
    path = Path(path)
    records = read_records(path, spec.file_format or format_of(path), spec.field_types)
    return put_cells_of_lines((_line_cell(record, spec) for record in records), store, on_progress)


def put_cells_of_lines(
    cells: Iterable[LineCell], store: CellStore, on_progress: OnProgress | None = None
) -> LoadReport:
    """Puts a stream of cells in batches of ``LOAD_BATCH_CELLS``, in order, and counts what became
    of each."""
    report = LoadReport()
    for batch in _batches(iter(cells)):
        results = iter(store.put_cells([line.cell for line in batch if line.cell is not None]))
        for line in batch:
            if line.cell is None:
                report.add(line.line, Outcome.FAILED, line.error)
            else:
                result = next(results)
                report.add(line.line, result.outcome, result.error)
        report.read_bytes = batch[-1].read_bytes
        if on_progress:
            on_progress(report)
    return report


def _batches(cells: Iterator[LineCell]) -> Iterator[list[LineCell]]:
    while batch := list(islice(cells, LOAD_BATCH_CELLS)):
        yield batch


def _line_cell(record: Record, spec: LoadSpec) -> LineCell:
    if record.fields is None:
        return LineCell(record.line, None, record.read_bytes, record.error)
    try:
        return LineCell(record.line, spec.cell(record.fields), record.read_bytes)
    except CellfeedError as error:
        return LineCell(record.line, None, record.read_bytes, error)


def _row_key(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise InvalidRowKey(
            f"field {name!r}, the row key, is"
            f" {'missing' if value is None else f'{value!r:.80}, not the text of a UUID'}"
        )
    return value


def _ref_key(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, str) and value.removeprefix("-").isdigit() and value.isascii():
        return int(value)
    if type(value) is int:
        return value
    raise InvalidRefKey(
        f"field {name!r}, the ref key, is"
        f" {'missing' if value is None else f'{value!r:.80}, not an integer'}"
    )
