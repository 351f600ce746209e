"""The test kit: a store, a trigger runtime and their faults in one process, for the tests of a
service's triggers.

It has no stand-in for a tested part: the store is the embedded one, the runtime and its
coordination are those of production, on threads instead of processes. It simulates the world around
them: a process that dies or is paused, a master that is lost, a ZooKeeper that is away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self
from uuid import UUID

from cellfeed.bridge.triggers.parked.cell import ParkedCell
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.triggers.program import Trigger
from cellfeed.store.cells.from_stored import cell_from_stored
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.testing.coordination import Coordination
from cellfeed.testing.failing_master import FailingMaster
from cellfeed.testing.faults import (
    CellFault,
    PausedWorker,
    ZooKeeperAway,
)
from cellfeed.testing.gate import Gate
from cellfeed.testing.history import History, Run
from cellfeed.testing.idle_run import IdleRun
from cellfeed.testing.kit_faults import FaultNeverHappened, KitFaults
from cellfeed.testing.zookeeper_tree import ZooKeeperTree

SHARDS: Final = 4
"""Shards of a kit's store by default: few, so that a handful of cells share one."""

DEADLINE_S: Final = 30.0
"""How long a run may take to become idle by default: far longer than any takes on a busy
machine."""


class Kit(KitFaults):
    """An empty store with its trigger runtime. To be closed, or used in a ``with``; the pytest
    fixture ``cellfeed_kit`` is one.

    ``coordination`` is ``store`` or ``zookeeper`` (one in memory). :meth:`zookeeper_away` chooses
    the latter by itself when nothing has run yet.
    """

    def __init__(
        self,
        directory: Path,
        *,
        datastore: str = "trips",
        shards: int = SHARDS,
        coordination: str = "store",
    ) -> None:
        if coordination not in ("store", "zookeeper"):
            raise ValueError(f"coordination={coordination!r} is neither 'store' nor 'zookeeper'")
        super().__init__(FailingMaster(SqliteEngine(directory / datastore, datastore, shards)))
        self.store: Datastore = Datastore(self._engine)
        """The store: put the cells in that the triggers are to run for, and look at the cells that
        they have put."""
        self._parked = ParkedCells(self._engine.state)
        self._in_zookeeper = coordination == "zookeeper"
        self._coordination: Coordination | None = None
        self._history = History()
        self._groups: set[str] = set()
        self._away: ZooKeeperAway | None = None

    # --- running ----------------------------------------------------------------------------------

    def run_until_idle(
        self, *triggers: Any, workers: int = 1, deadline_s: float = DEADLINE_S
    ) -> None:
        """Runs triggers (functions marked with ``@trigger``, or lists of them) on so many workers
        until each has run or parked every cell of its column.

        A worker that is killed is started again under its name. Cells are tried as often as the
        trigger's retry policy says, without its waits. With several workers no cell is shown to any
        of them before they have divided the shards.

        Raises NotIdle when that takes longer than ``deadline_s`` seconds, and names the remaining
        work; TriggerStopped when a trigger has stopped because too many of its cells are parked;
        and any error that ends a worker by a defect.
        """
        programs = [
            each
            for given in triggers
            for each in (given if isinstance(given, Sequence) else [given])
        ]
        chosen = [_as_trigger(each) for each in programs]
        if not chosen or workers < 1:
            raise ValueError("run_until_idle: one trigger and one worker at least")
        if workers == 1 and any(
            isinstance(fault, PausedWorker) and fault.missing for fault in self._faults
        ):
            raise ValueError(
                "run_until_idle: a worker that is paused past its lease needs another one that"
                " takes over: workers=2"
            )
        self._groups.update(trigger.group for trigger in chosen)
        run = IdleRun(
            chosen,
            workers,
            self._engine,
            self._opened(),
            self._faults,
            self._history,
            self._call,
            away=self._away is not None,
        )
        run.until_idle(deadline_s)

    def retry_parked(self, *triggers: Any, deadline_s: float = DEADLINE_S) -> None:
        """Has every parked cell of the triggers tried again, once, and runs until that is done."""
        for each in triggers:
            self._parked.ask_retry(_as_trigger(each).group)
        self.run_until_idle(*triggers, deadline_s=deadline_s)

    # --- what came of it --------------------------------------------------------------------------

    def runs(self, row_key: UUID | str, trigger: Any = None) -> int:
        """How often a function was called for cells of that row key, well or not; of one trigger,
        or of all."""
        return len(
            self._history.of(
                UUID(str(row_key)), _as_trigger(trigger).group if trigger is not None else None
            )
        )

    def history(self) -> list[Run]:
        """Every call of a function: for which cells, on which worker, and its outcome."""
        return self._history.all()

    def parked(self, trigger: Any = None) -> list[ParkedCell]:
        """The parked cells, with the error of each; of one trigger, or of all."""
        return self._parked.all(_as_trigger(trigger).group if trigger is not None else None)

    def offsets(self, trigger: Any = None) -> dict[int, int]:
        """By shard, the next location of a trigger as its coordination has it. The trigger may be
        left out where only one has run."""
        if trigger is None and len(self._groups) != 1:
            raise ValueError(f"offsets: name the trigger: {len(self._groups)} have run")
        [group] = self._groups if trigger is None else [_as_trigger(trigger).group]
        found = self._opened().observer.fetch_offsets(group)
        return {shard: offset.offset for (_, shard), offset in sorted(found.items())}

    # --- faults -----------------------------------------------------------------------------------

    @contextmanager
    def zookeeper_away(self) -> Iterator[ZooKeeperAway]:
        """In runs inside of it, ZooKeeper goes away once the workers have joined and have their
        shards. They must still do their work; their offsets are kept in the store, and are in
        ZooKeeper after the next run outside. A worker that is killed meanwhile cannot join again:
        when only its shards are left, ZooKeeper returns for the rest of the run."""
        if self._coordination is None:
            self._in_zookeeper = True
        tree = self._opened().tree
        if tree is None:
            raise RuntimeError(
                "zookeeper_away: this kit's triggers have run with coordination in the store; make"
                " it with coordination='zookeeper'"
            )
        self._away = self._injected(ZooKeeperAway(tree))
        try:
            yield self._away
        finally:
            self._away = None

    # --- life -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends everything, then :meth:`check_faults`."""
        self._end_faults()
        if self._coordination is not None:
            self._coordination.close()
        self.store.close()
        self.check_faults()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_exc: object) -> None:
        if kind is None:
            self.close()
        else:
            with suppress(
                FaultNeverHappened
            ):  # the test has failed already, and that is the better reason
                self.close()

    # --- inside -----------------------------------------------------------------------------------

    def _opened(self) -> Coordination:
        if self._coordination is None:
            self._coordination = Coordination(
                self._engine.state, ZooKeeperTree() if self._in_zookeeper else None
            )
        return self._coordination

    def _call(
        self, gate: Gate, trigger: Trigger, shard: int, stored: Any, call: Callable[[], object]
    ) -> object:
        gate.enter()
        cells = [cell_from_stored(shard, cell) for cell in stored]
        with self._history.call(trigger.group, cells, gate.worker):
            for cell in cells:
                for fault in self._faults:
                    if isinstance(fault, CellFault):
                        fault.before_call(trigger.group, cell, gate)
            return call()


def _as_trigger(given: Any) -> Trigger:
    trigger = given if isinstance(given, Trigger) else getattr(given, "__cellfeed_trigger__", None)
    if not isinstance(trigger, Trigger):
        raise TypeError(f"{given!r} is not a trigger: mark the function with @trigger(column=...)")
    if trigger.group:
        return trigger
    # In production it is the name of the configuration's entry; a test has none.
    return replace(trigger, group=getattr(trigger.function, "__name__", trigger.function_name))
