"""The faults that a test injects into a kit, and the check that each of them happened."""

from __future__ import annotations

from typing import Literal, TypeVar, overload

from cellfeed.store.failpoints import FAILPOINTS, unwatch_failpoint, watch_failpoint
from cellfeed.testing.failing_master import FailingMaster
from cellfeed.testing.faults import Failover, Fault, Kill, PausedWorker, Poison, Stall, Which

F = TypeVar("F", bound=Fault)


class FaultNeverHappened(AssertionError):
    """A fault was injected and never came about, so the test has not shown its claim."""


class KitFaults:
    """Base of :class:`cellfeed.testing.kit.Kit`: the faults that a test chooses. ``master`` is the
    kit's store engine."""

    def __init__(self, master: FailingMaster) -> None:
        self._engine = master
        self._faults: list[Fault] = []

    def poison(
        self, which: Which, *, times: int | None = None, error: BaseException | None = None
    ) -> Poison:
        """The function raises ``error`` instead of running, for the cells of a row key or those
        that a function of the cell picks: ``times`` times each, or always. A store that is away is
        played by ``error=StorageUnavailable(...)``."""
        return self._injected(
            Poison(which, times, lambda: error or ValueError("poison, says the test kit"))
        )

    @overload
    def stall(self, which: Which, *, past_lease: Literal[False] = False) -> Stall: ...

    @overload
    def stall(self, which: Which, *, past_lease: Literal[True]) -> PausedWorker: ...

    def stall(self, which: Which, *, past_lease: bool = False) -> Stall | PausedWorker:
        """The function hangs, once for each cell picked, until ``release()`` of the returned fault,
        or until the run has nothing else left to do. In a trigger with a time-out it hangs until
        that ends the worker.

        ``past_lease``: instead, the worker that is about to run the cell is paused as a whole, as
        by SIGSTOP. Its lease runs out, another worker takes its shards over and runs the cell; then
        it wakes up, runs the cell too, and must find its save refused. Needs ``workers=2``; takes
        two seconds.
        """
        return self._injected(PausedWorker(which) if past_lease else Stall(which))

    def failover(self, *, lose: int = 1, away_s: float = 0.0) -> Failover:
        """The store's master dies with the next ``lose`` new cells, wherever they are put: the
        outcome of their puts is ``unknown`` (OutcomeUnknown), no reader is ever shown them, and the
        cells that come after get their ids.

        Of a larger put it is the last cells that are lost. A caller that puts such a cell again
        finds the new master. For ``away_s`` seconds after the death there is none, and puts, reads
        by key and the state table raise StorageUnavailable.
        """
        if lose < 1:
            raise ValueError(f"failover(lose={lose}): one cell at least")
        fault = self._injected(Failover(self._engine, lose))
        self._engine.lose(lose, away_s)
        return fault

    def kill_at(self, failpoint: str, *, at_pass: int = 1) -> Kill:
        """The worker that passes a failpoint of the product, or one that the service declares, for
        the ``at_pass``-th time dies there, as by kill -9."""
        if failpoint not in FAILPOINTS:
            raise ValueError(
                f"there is no failpoint {failpoint!r} in the modules that are imported; there are"
                f" {', '.join(sorted(FAILPOINTS))}"
            )
        kill = self._injected(Kill(failpoint, at_pass))
        kills = [
            fault
            for fault in self._faults
            if isinstance(fault, Kill) and fault.failpoint == failpoint
        ]

        def pass_each() -> None:
            for each in kills:
                each.passed()

        watch_failpoint(failpoint, pass_each)
        return kill

    def check_faults(self) -> None:
        """Raises FaultNeverHappened when one that was injected has not come about."""
        if missing := [f"{fault.what}: {fault.missing}" for fault in self._faults if fault.missing]:
            raise FaultNeverHappened("; ".join(missing))

    def _end_faults(self) -> None:
        """Lets everything run that a fault stops, and stops nothing more."""
        for fault in self._faults:
            if isinstance(fault, Stall):
                fault.release()
            elif isinstance(fault, Kill):
                unwatch_failpoint(fault.failpoint)

    def _injected(self, fault: F) -> F:
        self._faults.append(fault)
        return fault
