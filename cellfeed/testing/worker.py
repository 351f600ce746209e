"""A worker of a kit: the product's own trigger worker on threads of this process, behind a gate."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Final

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.triggers.program import Trigger
from cellfeed.bridge.triggers.retry import Retry, RetryPolicy
from cellfeed.bridge.triggers.worker import run_trigger_worker
from cellfeed.store.api import CellStore
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.testing.gate import Gate, GatedEngine, WorkerKilled

WAIT_MAX_S: Final = 0.01
"""Longest pause between two tries of a cell: as many tries as the trigger's policy says, without
its waits."""

_DRAIN_S: Final = 5.0
"""How long a worker that is stopped waits for functions that are still running. A run that is idle
has none."""

_THREADS: Final = 4

Watch = Callable[[Gate, Trigger, int, Sequence[StoredCell], Callable[[], object]], object]
"""Calls the function, with the kit's own work around it."""


@dataclass(frozen=True)
class WatchedTrigger(Trigger):
    """A trigger whose calls the kit watches."""

    gate: Gate = field(default_factory=lambda: Gate("nobody"))
    watch: Watch = lambda _gate, _trigger, _shard, _cells, call: call()

    @classmethod
    def of(cls, trigger: Trigger, gate: Gate, watch: Watch) -> WatchedTrigger:
        values = {each.name: getattr(trigger, each.name) for each in fields(Trigger)}
        # A run of the kit has few rows and many faults: it would pause for them.
        changed = {"retry": without_waits(trigger.retry), "pause_rows": None}
        return cls(**{**values, **changed}, gate=gate, watch=watch)

    def caller(self, store: CellStore, shard: int) -> Callable[[Sequence[StoredCell]], object]:
        call = super().caller(store, shard)
        return lambda cells: self.watch(self.gate, self, shard, cells, lambda: call(cells))


def without_waits(retry: Retry) -> Retry:
    """The same tries, with hardly a pause between them."""
    if isinstance(retry, RetryPolicy):
        return RetryPolicy(
            retry.attempts,
            min(retry.first_wait_s, WAIT_MAX_S),
            min(retry.longest_wait_s, WAIT_MAX_S),
        )
    return {
        kind: RetryPolicy(
            policy.attempts,
            min(policy.first_wait_s, WAIT_MAX_S),
            min(policy.longest_wait_s, WAIT_MAX_S),
        )
        for kind, policy in retry.items()
    }


class Worker:
    """Begins to work at once."""

    def __init__(
        self,
        name: str,
        triggers: Sequence[Trigger],
        engine: Engine,
        open_coordinator: Callable[[Datastore, Gate], Coordinator],
        watch: Watch,
        shows_cells: Callable[[], bool],
        lease_s: float,
    ) -> None:
        self.name = name
        self.gate = Gate(name)
        self.error: BaseException | None = None
        """The error that ended it, unless it was asked to stop; WorkerKilled when it was killed."""
        self._triggers = [WatchedTrigger.of(trigger, self.gate, watch) for trigger in triggers]
        self._datastore = Datastore(GatedEngine(engine, self.gate, shows_cells))
        self._coordinator = open_coordinator(self._datastore, self.gate)
        self._lease_s = lease_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def is_running(self) -> bool:
        return self._thread.is_alive()

    def was_killed(self) -> bool:
        return not self.is_running() and self.gate.is_killed

    def stop(self) -> None:
        """Has it drain; does not wait."""
        self._stop.set()

    def close(self) -> None:
        """After :meth:`stop`: waits until it has ended."""
        self._stop.set()
        self._thread.join()
        self._coordinator.close()
        self._datastore.close()

    def _run(self) -> None:
        try:
            self.gate.enter()
            run_trigger_worker(
                self._triggers,
                self._datastore,
                self._coordinator,
                self.name,
                self._stop,
                lease_s=self._lease_s,
                threads=_THREADS,
                drain_s=_DRAIN_S,
                exit_process=self._end_process,
            )
        except BaseException as error:  # the run reports any of them
            self.error = error

    def _end_process(self, code: int) -> None:
        """Ends a worker whose function has run into its time-out."""
        where = f"the time-out of a function (exit code {code})"
        self.gate.kill(where)
        raise WorkerKilled(where)
