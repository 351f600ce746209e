"""The faults that a kit injects. Each knows whether it has happened: one that never did has proved
nothing, and fails the test.

Which cells a fault is for is said by a row key, or by a function that looks at the cell.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from uuid import UUID

from cellfeed.store.cells.cell import Cell
from cellfeed.testing.failing_master import FailingMaster
from cellfeed.testing.gate import Gate, WorkerKilled, gate_here
from cellfeed.testing.lost_cell import LostCell
from cellfeed.testing.zookeeper_tree import ZooKeeperTree

Which = UUID | str | Callable[[Cell], bool]
"""A row key, as UUID or text, or a function of the cell."""

_PASS_THE_GATE_S = 0.01


def as_predicate(which: Which) -> Callable[[Cell], bool]:
    """Raises ValueError for text that is no UUID."""
    if callable(which):
        return which
    row_key = UUID(which) if isinstance(which, str) else which
    return lambda cell: cell.row_key == row_key


class Fault(ABC):
    """See the module."""

    def __init__(self, what: str) -> None:
        self.what = what
        """For people."""

    @property
    @abstractmethod
    def missing(self) -> str | None:
        """The part of it that has not happened; None when all of it has."""

    @property
    def happened(self) -> bool:
        return self.missing is None


class CellFault(Fault):
    """One that strikes at certain cells."""

    @abstractmethod
    def before_call(self, group: str, cell: Cell, gate: Gate) -> None:
        """Called in the worker's thread before a trigger's function is, for each of its cells; may
        raise or wait."""


class Poison(CellFault):
    """The function raises instead of running, ``times`` times for each cell it is for (always:
    None)."""

    def __init__(self, which: Which, times: int | None, error: Callable[[], BaseException]) -> None:
        super().__init__(f"poison({which}, times={times})")
        self._is_for = as_predicate(which)
        self._times = times
        self._error = error
        self._lock = threading.Lock()
        self.raised: Counter[tuple[str, int, int]] = Counter()
        """How often, by (group, shard, added_id)."""

    def before_call(self, group: str, cell: Cell, gate: Gate) -> None:
        del gate
        if not self._is_for(cell):
            return
        with self._lock:
            key = group, cell.shard, cell.added_id
            if self._times is not None and self.raised[key] >= self._times:
                return
            self.raised[key] += 1
        raise self._error()

    @property
    def missing(self) -> str | None:
        most = max(self.raised.values(), default=0)
        if most == 0:
            return "no trigger was called for such a cell"
        if self._times is not None and most < self._times:
            return (
                f"no cell raised {self._times} times, the most was {most}: the trigger parks a cell"
                " when its tries are used up"
            )
        return None


class Stall(CellFault):
    """The function hangs, once for each cell, until :meth:`release`; a run that has nothing else
    left to do releases it."""

    def __init__(self, which: Which) -> None:
        super().__init__(f"stall({which})")
        self._is_for = as_predicate(which)
        self._released = threading.Event()
        self._seen: set[tuple[str, int, int]] = set()
        self.stalled: set[tuple[str, int]] = set()
        """(group, shard) of the calls that hang now."""

    def before_call(self, group: str, cell: Cell, gate: Gate) -> None:
        key = group, cell.shard, cell.added_id
        if self._released.is_set() or key in self._seen or not self._is_for(cell):
            return
        self._seen.add(key)
        self.stalled.add((group, cell.shard))
        try:
            while not self._released.wait(_PASS_THE_GATE_S):
                gate.pass_through()  # a worker that is killed meanwhile does not wait for ever
        finally:
            self.stalled.discard((group, cell.shard))
        gate.pass_through()

    def release(self) -> None:
        """Lets go those that hang; the cells that come later do not hang either."""
        self._released.set()

    @property
    def missing(self) -> str | None:
        return None if self._seen else "no trigger was called for such a cell"


class PausedWorker(CellFault):
    """The worker that is about to call the function is paused as a whole, past its lease, until
    another one has done the cell; then it resumes, and must find that nothing it saves is taken (it
    is fenced)."""

    def __init__(self, which: Which) -> None:
        super().__init__(f"stall({which}, past_lease=True)")
        self._is_for = as_predicate(which)
        self._lock = threading.Lock()
        self.cell: Cell | None = None
        self.group = ""
        self.gate: Gate | None = None
        """Of the worker that is, or was, paused."""
        self.resumed = False
        self.fenced = False
        self._on_pause: Callable[[Gate], None] = lambda gate: gate.pause()

    def pause_by(self, pause: Callable[[Gate], None]) -> None:
        """How a worker is paused."""
        self._on_pause = pause

    def before_call(self, group: str, cell: Cell, gate: Gate) -> None:
        with self._lock:
            if self.gate is not None or not self._is_for(cell):
                return
            self.group, self.cell, self.gate = group, cell, gate
        self._on_pause(gate)
        gate.pass_through()

    def refused(self, gate: Gate) -> None:
        """A save of that worker was refused."""
        if gate is self.gate and self.resumed:
            self.fenced = True

    @property
    def missing(self) -> str | None:
        if self.gate is None:
            return "no trigger was called for such a cell"
        if not self.resumed:
            return "no other worker has taken over: it needs run_until_idle(..., workers=2)"
        return (
            None
            if self.fenced
            else "the save of the paused worker after it woke up was never refused"
        )


class Kill(Fault):
    """The worker that passes a failpoint for the ``at_pass``-th time dies there, as by kill -9. The
    run starts it again under its name."""

    def __init__(self, failpoint: str, at_pass: int) -> None:
        super().__init__(f"kill_at({failpoint!r}, at_pass={at_pass})")
        self.failpoint = failpoint
        self._at_pass = at_pass
        self._lock = threading.Lock()
        self._passes = 0

    def passed(self) -> None:
        """In the thread that passes it. Passes outside of workers do not count."""
        gate = gate_here()
        if gate is None or gate.is_killed:
            return
        with self._lock:
            self._passes += 1
            if self._passes != self._at_pass:
                return
        gate.kill(self.failpoint)
        raise WorkerKilled(self.failpoint)

    @property
    def missing(self) -> str | None:
        return None if self._passes >= self._at_pass else f"workers passed it {self._passes} times"


class Failover(Fault):
    """The store's master dies with its last cells, see ``failing_master.py``."""

    def __init__(self, engine: FailingMaster, lose: int) -> None:
        super().__init__(f"failover(lose={lose})")
        self._engine = engine
        self._before = len(engine.lost)
        self._lose = lose

    @property
    def lost(self) -> list[LostCell]:
        """The cells that went with the master, in the order in which they were put."""
        return self._engine.lost[self._before : self._before + self._lose]

    @property
    def missing(self) -> str | None:
        return (
            None
            if len(self.lost) == self._lose
            else f"{len(self.lost)} cells were lost: fewer new cells than that were put since"
        )


class ZooKeeperAway(Fault):
    """Every call of the coordination fails, see ``zookeeper_tree.py``."""

    def __init__(self, tree: ZooKeeperTree) -> None:
        super().__init__("zookeeper_away()")
        self._tree = tree
        self._before = tree.refused

    @property
    def missing(self) -> str | None:
        return (
            None
            if self._tree.refused > self._before
            else "no worker asked ZooKeeper for anything meanwhile: run something inside of it"
        )
