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

from cellfeed.store.cells.cell import NewCell, PutResult, StoredCell, Triple
from cellfeed.store.engines.contract.dictionaries import DictionaryStore
from cellfeed.store.engines.contract.engine import Engine, StateTable
from cellfeed.store.engines.contract.indexes import IndexStore
from cellfeed.store.engines.contract.values import (
    ErasedStep,
    Head,
    HeadChanges,
    LocatedCell,
    LogRange,
    Replica,
)
from cellfeed.store.errors import Unavailable
from cellfeed.store.failpoints import ProcessEnds
from cellfeed.store.histories import History
from cellfeed.store.limits import ERASE_STEP_CELLS, READ_KEYS_MAX, TRIM_STEP_CELLS
from cellfeed.testing.checked_state import CheckedState


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


class GatedEngine:
    """:class:`cellfeed.store.engines.contract.engine.Engine` as one worker sees it. Closing it
    leaves the engine open, which is everybody's.

    ``shows_cells`` says whether the log is shown yet: until then a scan finds nothing, as if it
    were at its end.
    """

    def __init__(self, engine: Engine, gate: Gate, shows_cells: Callable[[], bool]) -> None:
        self._engine = engine
        self._gate = gate
        self._shows_cells = shows_cells
        self._state = CheckedState(engine.state, gate.pass_through)

    @property
    def datastore(self) -> str:
        return self._engine.datastore

    @property
    def shards(self) -> int:
        return self._engine.shards

    @property
    def history(self) -> History:
        return self._engine.history

    @property
    def state(self) -> StateTable:
        return self._state

    def commit_group(self, shard: int) -> str:
        return self._engine.commit_group(shard)

    def put(self, cells: Sequence[NewCell]) -> list[PutResult]:
        self._gate.enter()  # the thread that writes for this worker
        return self._engine.put(cells)

    def get(
        self, triples: Sequence[Triple], read_from: Replica = Replica.MASTER
    ) -> list[LocatedCell | None]:
        self._gate.pass_through()
        return self._engine.get(triples, read_from)

    def latest(
        self, keys: Sequence[tuple[bytes, str]], read_from: Replica = Replica.MASTER
    ) -> list[LocatedCell | None]:
        self._gate.pass_through()
        return self._engine.latest(keys, read_from)

    def row(
        self, row_keys: Sequence[bytes], read_from: Replica = Replica.MASTER, after_column: str = ""
    ) -> list[list[LocatedCell]]:
        self._gate.pass_through()
        return self._engine.row(row_keys, read_from, after_column)

    def scan(self, shard: int, location: int, limit: int) -> list[StoredCell]:
        self._gate.enter()
        return self._engine.scan(shard, location, limit) if self._shows_cells() else []

    def scan_many(self, ranges: Sequence[LogRange]) -> list[list[StoredCell]]:
        return [self.scan(*each) for each in ranges]

    def superseded(
        self, shard: int, start: int, end: int, log_start: int, watermark: int
    ) -> set[int]:
        self._gate.pass_through()
        return self._engine.superseded(shard, start, end, log_start, watermark)

    def locate(self, shard: int, created_at_us: int) -> int:
        self._gate.pass_through()
        return self._engine.locate(shard, created_at_us)

    def heads(self, shards: Sequence[int] | None = None) -> dict[int, Head]:
        self._gate.pass_through()
        return self._engine.heads(shards)

    def heads_since(self, mark: object | None) -> HeadChanges:
        self._gate.pass_through()
        return self._engine.heads_since(mark)

    def acknowledged_ends(self) -> dict[int, tuple[int, int]]:
        self._gate.pass_through()
        return self._engine.acknowledged_ends()

    def trim_limits(self, shards: Sequence[int]) -> dict[int, int]:
        self._gate.pass_through()
        return self._engine.trim_limits(shards)

    def trim(self, shard: int, below: int, cells_max: int = TRIM_STEP_CELLS) -> int:
        self._gate.pass_through()
        return self._engine.trim(shard, below, cells_max)

    def erase(self, row_key: bytes, cells_max: int = ERASE_STEP_CELLS) -> ErasedStep:
        self._gate.pass_through()
        return self._engine.erase(row_key, cells_max)

    def row_cells(
        self, row_key: bytes, after: int = -1, limit: int = READ_KEYS_MAX
    ) -> list[StoredCell]:
        self._gate.pass_through()
        return self._engine.row_cells(row_key, after, limit)

    @property
    def indexes(self) -> IndexStore:
        return self._engine.indexes

    @property
    def dictionaries(self) -> DictionaryStore:
        return self._engine.dictionaries

    def leader_epochs(self, shard: int) -> list[tuple[int, int]]:
        self._gate.pass_through()
        return self._engine.leader_epochs(shard)

    def columns(self) -> list[str]:
        self._gate.pass_through()
        return self._engine.columns()

    def change_token(self) -> int:
        self._gate.pass_through()
        return self._engine.change_token()

    def close(self) -> None:
        """Leaves the engine as it is."""
