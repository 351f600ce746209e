"""One run of a kit: workers at work until nothing is left to do.

A run is idle when three things hold: every trigger's saved offset is at every shard's watermark; no
parked cell waits for a retry that was asked for; no worker is paused. A shard whose offset is past
a cell has run it or parked it (that is the runtime's promise); while ZooKeeper is away the offset
is the one that workers keep in the store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from typing import Final

from cellfeed.bridge.coordination.contract import Claim, Coordinator
from cellfeed.bridge.triggers.offsets.kept_offsets import KeptOffsets
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.triggers.program import Trigger
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.errors import Unavailable
from cellfeed.testing.coordination import Coordination
from cellfeed.testing.faults import Fault, PausedWorker
from cellfeed.testing.gate import Gate, WorkerKilled
from cellfeed.testing.history import History, RunOutcome
from cellfeed.testing.remaining_work import RemainingWork, release_stalls
from cellfeed.testing.worker import Watch, Worker

LEASE_S: Final = 2.0
"""Lease of the workers, in seconds: none runs out on a busy machine, and shards are divided again
in a quarter of it."""

LEASE_TO_LOSE_S: Final = 1.0
"""Lease where a worker is to be paused past it: such a test waits that long."""

_LOOK_EVERY_S: Final = 0.005


class NotIdle(AssertionError):
    """A run did not become idle in time; the message names the remaining work."""


class TriggerStopped(AssertionError):
    """A trigger stopped because too many of its cells are parked."""


class IdleRun:
    """See the module. ``away``: ZooKeeper is to be away, once every shard has its worker."""

    def __init__(
        self,
        triggers: Sequence[Trigger],
        workers: int,
        engine: Engine,
        coordination: Coordination,
        faults: Sequence[Fault],
        history: History,
        watch: Watch,
        *,
        away: bool,
    ) -> None:
        self._triggers = triggers
        self._engine = engine
        self._coordination = coordination
        self._faults = faults
        self._history = history
        self._watch = watch
        self._away = away
        self._lease_s = (
            LEASE_TO_LOSE_S
            if any(isinstance(fault, PausedWorker) and fault.missing for fault in faults)
            else LEASE_S
        )
        self._remaining = RemainingWork(triggers, engine, coordination, history)
        self._lock = threading.Lock()
        self._claims: dict[tuple[str, int], tuple[Gate, int]] = {}
        self._settled = threading.Event()
        if workers == 1 and not away:
            self._settled.set()
        for fault in faults:
            if isinstance(fault, PausedWorker):
                fault.pause_by(coordination.pause)
        self._workers = [self._start(f"worker-{number + 1}") for number in range(workers)]

    # --- what workers tell ------------------------------------------------------------------------

    def claimed(self, gate: Gate, claims: Collection[Claim]) -> None:
        with self._lock:
            self._claims.update(
                {(claim.group, claim.partition): (gate, claim.token) for claim in claims}
            )

    def refused(self, gate: Gate) -> None:
        for fault in self._faults:
            if isinstance(fault, PausedWorker):
                fault.refused(gate)

    # --- the run ----------------------------------------------------------------------------------

    def until_idle(self, deadline_s: float) -> None:
        """Raises NotIdle, TriggerStopped, or the error that ended a worker. Ends the workers in any
        case: they drain, or where it failed they are killed."""
        try:
            self._until_idle(time.monotonic() + deadline_s, deadline_s)
        except BaseException:
            for worker in self._workers:
                worker.gate.kill("the end of a run that failed")
            raise
        finally:
            self._end()

    def _until_idle(self, deadline: float, deadline_s: float) -> None:
        while True:
            self._replace_the_dead()
            waits_for = self._waits_for()
            if not waits_for:
                return
            if time.monotonic() > deadline:
                raise NotIdle(f"not idle within {deadline_s:g} s: {'; '.join(waits_for)}")
            time.sleep(_LOOK_EVERY_S)

    def _start(self, name: str) -> Worker:
        def open_coordinator(store: Datastore, gate: Gate) -> Coordinator:
            return self._coordination.open(store.state, gate, self)

        return Worker(
            name,
            self._triggers,
            self._engine,
            open_coordinator,
            self._watch,
            self._settled.is_set,
            self._lease_s,
        )

    def _replace_the_dead(self) -> None:
        for number, worker in enumerate(self._workers):
            if worker.is_running():
                continue
            if isinstance(worker.error, WorkerKilled):
                self._coordination.abandon(worker.gate)
                worker.close()
                self._workers[number] = self._start(worker.name)
            elif worker.error is not None:
                raise worker.error

    def _end(self) -> None:
        self._settled.set()
        for worker in self._workers:
            self._coordination.resume(worker.gate)
            worker.stop()
        for worker in self._workers:
            worker.close()
        if self._coordination.tree is not None:
            self._coordination.tree.come_back()

    # --- what is left to do -----------------------------------------------------------------------

    def _waits_for(self) -> list[str]:
        try:
            if not self._settle():
                return ["the workers to divide the shards among them"]
            self._mind_paused_workers()
            for trigger in self._triggers:
                if (
                    reason := ParkedCells(self._engine.state).stopped_because(trigger.group)
                ) is not None:
                    raise TriggerStopped(f"trigger {trigger.group} has stopped: {reason}")
            left = self._remaining.left(is_away=self._is_away())
        except Unavailable as error:
            return [f"the store or the coordination: {error}"]
        release_stalls(self._faults, self._triggers, set(left))
        self._bring_zookeeper_back_for(set(left))
        paused = [
            f"{fault.what}: {fault.missing}"
            for fault in self._faults
            if isinstance(fault, PausedWorker) and fault.gate is not None and fault.missing
        ]
        return [*left.values(), *paused]

    # --- faults -----------------------------------------------------------------------------------

    def _mind_paused_workers(self) -> None:
        for fault in self._faults:
            if (
                isinstance(fault, PausedWorker)
                and fault.gate is not None
                and fault.cell is not None
                and not fault.resumed
            ):
                runs = self._history.of_cell(fault.group, fault.cell)
                if any(
                    run.worker != fault.gate.worker and run.outcome is RunOutcome.DONE
                    for run in runs
                ):
                    fault.resumed = True
                    self._coordination.resume(fault.gate)

    def _bring_zookeeper_back_for(self, left: set[tuple[str, int]]) -> None:
        """A worker that was killed cannot join again without ZooKeeper: when only its shards are
        left, ZooKeeper is back."""
        if left and self._is_away() and self._coordination.tree is not None:
            with self._lock:
                of_the_dead = {key for key, (gate, _) in self._claims.items() if gate.is_killed}
            if left <= of_the_dead:
                self._coordination.tree.come_back()
                self._away = False

    # --- beginning --------------------------------------------------------------------------------

    def _settle(self) -> bool:
        """Whether every shard has its worker, evenly; from then on cells are shown."""
        if self._settled.is_set():
            return True
        if not all(self._is_divided(trigger.group) for trigger in self._triggers):
            return False
        if self._away and self._coordination.tree is not None:
            self._coordination.tree.go_away()
        self._settled.set()
        return True

    def _is_divided(self, group: str) -> bool:
        with self._lock:
            claims = {
                shard: claim for (name, shard), claim in self._claims.items() if name == group
            }
        if len(claims) < self._engine.shards:
            return False
        shares = [
            sum(gate is worker.gate for gate, _ in claims.values()) for worker in self._workers
        ]
        if min(shares) < self._engine.shards // len(self._workers) or max(shares) - min(shares) > 1:
            return False
        if self._coordination.tree is None:
            return True
        # A shard is claimed first and begun then: only a worker that has begun keeps running
        # without ZooKeeper.
        begun = KeptOffsets(self._engine.state, group, self._engine.datastore).tokens()
        return begun == {shard: token for shard, (_, token) in claims.items()}

    def _is_away(self) -> bool:
        return self._away and self._settled.is_set()
