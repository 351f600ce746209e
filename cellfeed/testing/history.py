"""Every call of a trigger's function in a kit: its cells, its worker and its outcome."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING
from uuid import UUID

from cellfeed.store.cells.cell import Cell
from cellfeed.testing.gate import WorkerKilled

if TYPE_CHECKING:
    from collections.abc import Iterator


class RunOutcome(StrEnum):
    """The outcome of a call: ``killed`` with its worker, wherever in the function that was."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    KILLED = "killed"


@dataclass
class Run:
    """One call. ``cells`` are several where the trigger takes batches; ``error`` is the function's
    exception."""

    group: str
    cells: Sequence[Cell]
    worker: str
    outcome: RunOutcome = RunOutcome.RUNNING
    error: BaseException | None = None
    begun_s: float = field(default_factory=time.monotonic)

    @property
    def shard(self) -> int:
        return self.cells[0].shard

    @property
    def cell_ids(self) -> str:
        """For people: ``<shard>/<added_id>``, a range for a batch."""
        first, last = self.cells[0], self.cells[-1]
        return f"{self.shard}/{first.added_id}" + (f"-{last.added_id}" if last is not first else "")


class History:
    """In the order of the calls' beginnings. Any number of threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: list[Run] = []

    @contextmanager
    def call(self, group: str, cells: Sequence[Cell], worker: str) -> Iterator[Run]:
        """Around a call of the function."""
        run = Run(group, cells, worker)
        with self._lock:
            self._runs.append(run)
        try:
            yield run
        except WorkerKilled:
            run.outcome = RunOutcome.KILLED
            raise
        except BaseException as error:
            run.outcome, run.error = RunOutcome.FAILED, error
            raise
        run.outcome = RunOutcome.DONE

    def all(self) -> list[Run]:
        with self._lock:
            return list(self._runs)

    def of(self, row_key: UUID, group: str | None = None) -> list[Run]:
        """The calls for cells of a row key."""
        return [
            run
            for run in self.all()
            if group in (None, run.group) and any(cell.row_key == row_key for cell in run.cells)
        ]

    def of_cell(self, group: str, cell: Cell) -> list[Run]:
        return [
            run
            for run in self.all()
            if run.group == group
            and any(
                (each.shard, each.added_id) == (cell.shard, cell.added_id) for each in run.cells
            )
        ]
