"""The outcomes of the lines of a load. Equal problems are one, with a count and its first lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.errors import CellfeedError

PROBLEM_KINDS_MAX: Final = 100
"""Problems that differ, which a report keeps word for word; others are only counted."""

PROBLEM_LINES_MAX: Final = 5
"""Lines that are named of one problem."""

_VALUES: Final = re.compile(
    r"(?<!field )'(?:[^'\\]|\\.)*'|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+"
)
"""The parts that differ between two errors of the same mistake: values, row keys, numbers."""


@dataclass(slots=True)
class Problem:
    """Lines that are not in the store as the file has them, and why: the error of the first."""

    outcome: Outcome
    error: CellfeedError
    lines: list[int]
    count: int = 1

    @property
    def line(self) -> int:
        """The first of them."""
        return self.lines[0]

    def __str__(self) -> str:
        if self.count == 1:
            return f"line {self.line}: {self.outcome.value}: {self.error}"
        others = ", ".join(map(str, self.lines[1:]))
        more = ", …" if self.count > len(self.lines) else ""
        return (
            f"line {self.line}: {self.outcome.value}: {self.error} (and {self.count - 1:,} more"
            f" like it: {'line' if self.count == 2 else 'lines'} {others}{more})"
        )


@dataclass(slots=True)
class LoadReport:
    """The outcomes of the cells of a load. ``failed`` cells were not written, ``unknown`` ones may
    have been: running the load again settles it. ``stopped_behind``: the last line that was tried,
    of a load that had more errors than it may have."""

    stored: int = 0
    exists: int = 0
    buffered: int = 0
    conflicts: int = 0
    failed: int = 0
    unknown: int = 0
    read_bytes: int = 0
    last_line: int = 0
    stopped_behind: int | None = None
    problems: list[Problem] = field(default_factory=list)
    _kinds: dict[tuple[Outcome, str], Problem] = field(default_factory=dict)

    @property
    def cells(self) -> int:
        """Cells looked at so far."""
        return self.stored + self.exists + self.buffered + self.errors

    @property
    def errors(self) -> int:
        """Cells that are not in the store as the file has them."""
        return self.conflicts + self.failed + self.unknown

    @property
    def complete(self) -> bool:
        """Whether every line is in the store as the file has it."""
        return not self.errors and self.stopped_behind is None

    def as_json(self) -> dict[str, Any]:
        """The report for ``--json``."""
        counts = {name: getattr(self, name) for name in COUNTS}
        problems = [
            {
                "line": problem.line,
                "count": problem.count,
                "lines": problem.lines,
                "outcome": problem.outcome.value,
                **problem.error.as_json(),
            }
            for problem in self.problems
        ]
        return {
            **counts,
            "cells": self.cells,
            "complete": self.complete,
            "stopped_behind_line": self.stopped_behind,
            "problems": problems,
        }

    def add(self, line: int, outcome: Outcome, error: CellfeedError | None) -> None:
        """Counts one cell."""
        name = _COUNTED_AS[outcome]
        setattr(self, name, getattr(self, name) + 1)
        self.last_line = line
        if error is None:
            return
        kind = (outcome, _VALUES.sub("…", str(error)))
        known = self._kinds.get(kind)
        if known is not None:
            known.count += 1
            if len(known.lines) < PROBLEM_LINES_MAX:
                known.lines.append(line)
        elif len(self.problems) < PROBLEM_KINDS_MAX:
            self._kinds[kind] = Problem(outcome, error, [line])
            self.problems.append(self._kinds[kind])

    @property
    def unnamed(self) -> int:
        """Errors that no problem names."""
        return self.errors - sum(problem.count for problem in self.problems)


COUNTS: Final = ("stored", "exists", "buffered", "conflicts", "failed", "unknown")

_COUNTED_AS: Final = {
    Outcome.STORED: "stored",
    Outcome.EXISTS: "exists",
    Outcome.BUFFERED: "buffered",
    Outcome.CONFLICT: "conflicts",
    Outcome.FAILED: "failed",
    Outcome.UNKNOWN: "unknown",
}
