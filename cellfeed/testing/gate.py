"""The gate between a worker of the kit and everything outside it, so that the worker can be paused
and killed as a process can.

A worker is a few threads here. A process acts on the world by calls: to the store, to the
coordination, and in the trigger functions. All of them pass the gate first. Behind a gate that is
shut for a pause every thread of the worker waits; behind one that is shut for good they end,
wherever they were. In between they may compute: nobody can see that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from cellfeed.store.cells.cell import NewCell, StoredCell
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.contract.values import LogRange
from cellfeed.store.errors import Unavailable
from cellfeed.store.failpoints import ProcessEnds
from cellfeed.testing.checked_state import CheckedState
from cellfeed.testing.engine_around import EngineAround


class WorkerKilled(ProcessEnds):
    """Ends the threads of a worker that was killed: nothing in the worker or in a trigger function
    is to handle it."""


class Gate:
    """One worker's."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self._open = threading.Event()
        self._open.set()
        self._killed_at: str | None = None

    @property
    def is_paused(self) -> bool:
        return not self._open.is_set()

    @property
    def is_killed(self) -> bool:
        return self._killed_at is not None

    def pause(self) -> None:
        self._open.clear()

    def resume(self) -> None:
        self._open.set()

    def kill(self, where: str) -> None:
        """For good."""
        self._killed_at = where
        self._open.set()

    def pass_through(self) -> None:
        """Waits while the worker is paused. When it was killed: raises WorkerKilled in a thread
        that runs cells, Unavailable in those beside them, which end by themselves."""
        self._open.wait()
        if self._killed_at is not None:
            if _here.gate is self:
                raise WorkerKilled(self._killed_at)
            raise Unavailable(f"{self.worker} was killed at {self._killed_at}")

    def enter(self) -> None:
        """The calling thread runs cells for this worker from now on."""
        _here.gate = self
        self.pass_through()


class _Here(threading.local):
    gate: Gate | None = None


_here: Final = _Here()


def gate_here() -> Gate | None:
    """The gate of the worker that the calling thread runs cells for."""
    return _here.gate


class GatedEngine(EngineAround):
    """:class:`cellfeed.store.engines.contract.engine.Engine` as one worker sees it. Closing it
    leaves the engine open, which is everybody's.

    ``shows_cells`` says whether the log is shown yet: until then a scan finds nothing, as if it
    were at its end.
    """

    def __init__(self, engine: Engine, gate: Gate, shows_cells: Callable[[], bool]) -> None:
        super().__init__(engine)
        self._gate = gate
        self._shows_cells = shows_cells
        self._state = CheckedState(engine.state, gate.pass_through)

    def before_call(self) -> None:
        self._gate.pass_through()

    @property
    def state(self) -> StateTable:
        return self._state

    def put(self, cells: Sequence[NewCell]) -> list[PutResult]:
        self._gate.enter()  # the thread that writes for this worker
        return self.inner.put(cells)

    def scan(self, shard: int, location: int, limit: int) -> list[StoredCell]:
        self._gate.enter()
        return self.inner.scan(shard, location, limit) if self._shows_cells() else []

    def scan_many(self, ranges: Sequence[LogRange]) -> list[list[StoredCell]]:
        return [self.scan(*each) for each in ranges]

    def close(self) -> None:
        """Leaves the engine as it is."""
