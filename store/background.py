"""The one way to run a loop beside the caller: no thread or task that matters ends unseen.

A loop is a function that returns when it is to end. Any error that leaves it is logged with its
traceback. A loop that may be restarted then runs again after a pause. The pause doubles with each
death up to ``PAUSE_MAX_S`` and begins small again after ``STEADY_S`` without one. A loop that may
not be restarted is dead.

Trouble is reported at once: ``/health/ready`` answers 503 while a loop is dead, or dies again and
again (:func:`troubles`), and ``cellfeed status`` shows it (:func:`when_changed`). A dead loop stays
in the report until its owner closes it.

A :class:`BaseException` that is no :class:`Exception` ends any loop for good: it stands for the end
of the process or of the task.

After a ``fork()`` the child has no loops: its threads are the parent's. So its report begins empty.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from cellfeed.store import forks

PAUSE_FIRST_S: Final = 0.1
PAUSE_MAX_S: Final = 5.0
"""Between a loop's death and its next run, in seconds: long enough that a loop that cannot live
costs nothing, short enough for a server that restarts."""

STEADY_S: Final = 30.0
"""A loop that has run so long since its last death is well again, in seconds."""

DEATHS_REPORTED: Final = 3
"""From so many deaths without a steady run between them on, the process is not ready: one may be an
accident, this is a defect."""

TRACE_EVERY_S: Final = 5.0
"""How often the traceback of one loop is logged, in seconds; between them deaths are counted."""

_log = logging.getLogger("cellfeed.background")


class LoopTrouble(msgspec.Struct, frozen=True):
    """A loop that has died. ``died_at_s``: when it did last, in seconds of the machine's monotonic
    clock, which all processes of a host share."""

    loop: str
    reason: str
    deaths: int
    is_dead: bool
    died_at_s: float

    def is_over(self, now_s: float) -> bool:
        """Whether the loop runs well again."""
        return not self.is_dead and now_s - self.died_at_s > STEADY_S + PAUSE_MAX_S

    def __str__(self) -> str:
        if self.is_dead:
            return f"{self.loop} is dead, restart the process: {self.reason}"
        return f"{self.loop} has died {self.deaths} times, and restarts: {self.reason}"


class _Loop:
    """The state of one loop, on a thread or a task."""

    def __init__(self, name: str, *, restarts: bool) -> None:
        self.name = name
        self.trouble: LoopTrouble | None = None
        self._restarts = restarts
        self._pause_s = PAUSE_FIRST_S
        self._traced_at_s = float("-inf")

    def died(self, error: BaseException) -> float | None:
        """Logs and reports an end. Returns after how many seconds the loop runs again; None when it
        does not."""
        now_s = time.monotonic()
        before = self.trouble
        if before is None or now_s - before.died_at_s > STEADY_S:
            before, self._pause_s = None, PAUSE_FIRST_S
        is_dead = not (self._restarts and isinstance(error, Exception))
        deaths = before.deaths + 1 if before else 1
        self.trouble = LoopTrouble(
            self.name, f"{type(error).__name__}: {error}", deaths, is_dead, now_s
        )
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, PAUSE_MAX_S)
        if is_dead or now_s - self._traced_at_s >= TRACE_EVERY_S:
            self._traced_at_s = now_s
            what = "is not started again" if is_dead else f"runs again in {pause_s:g} s"
            _log.error(
                "the loop %s has ended by an error (%d times in a row), and %s",
                self.name,
                deaths,
                what,
                exc_info=error,
            )
        _registry.report(self)
        return None if is_dead else pause_s


class _Registry:
    """The loops of this process that have died and were not closed."""

    def __init__(self) -> None:
        self.in_trouble: list[_Loop] = []
        self.changed: Callable[[Sequence[LoopTrouble]], object] | None = None
        self.lock = threading.Lock()
        self.reporting = threading.Lock()

    def report(self, loop: _Loop) -> None:
        with self.lock:
            if loop not in self.in_trouble:
                self.in_trouble.append(loop)
        self._report_changed()

    def forget(self, loop: _Loop) -> None:
        with self.lock:
            if loop not in self.in_trouble:
                return
            self.in_trouble.remove(loop)
        self._report_changed()

    def found(self) -> list[LoopTrouble]:
        now_s = time.monotonic()
        with self.lock:
            return [
                loop.trouble
                for loop in self.in_trouble
                if loop.trouble is not None and not loop.trouble.is_over(now_s)
            ]

    def _report_changed(self) -> None:
        if self.changed is not None:
            try:
                with self.reporting:  # the last report is the newest
                    self.changed(self.found())
            except Exception:
                _log.exception("the state of the loops could not be reported")


_registry = _Registry()


def _in_child() -> None:
    global _registry
    _registry = _Registry()


os.register_at_fork(after_in_child=_in_child)


def all_troubles() -> list[LoopTrouble]:
    """Every loop that has died and does not run well again yet."""
    return _registry.found()


def troubles() -> list[str]:
    """Why this process is not ready: loops that are dead, or that die again and again."""
    return [str(each) for each in all_troubles() if each.is_dead or each.deaths >= DEATHS_REPORTED]


def when_changed(report: Callable[[Sequence[LoopTrouble]], object]) -> None:
    """Has ``report`` called with :func:`all_troubles` whenever a loop dies or a dead one is closed,
    in any thread. One reporter for each process."""
    _registry.changed = report


class SupervisedThread:
    """A loop on a thread of its own, a daemon. ``run`` is called in it. ``restarts``: whether
    ``run`` may be called again after an error; its shared state must allow that. ``died`` is called
    in the thread when the loop is dead."""

    def __init__(
        self,
        name: str,
        run: Callable[[], object],
        *,
        restarts: bool = True,
        died: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.name = name
        self._run, self._died = run, died
        self._loop = _Loop(name, restarts=restarts)
        self._closing = threading.Event()
        self._generation = forks.generation
        self._thread = threading.Thread(target=self._keep, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether it runs, or is about to run again."""
        return self._thread.is_alive()

    def join(self, timeout_s: float | None = None) -> None:
        """Waits for the end, for which the owner has given the sign; a loop that waits to be
        restarted ends now. In a forked child there is nothing to wait for."""
        if self._generation != forks.generation:
            return
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        _registry.forget(self._loop)

    def _keep(self) -> None:
        while True:
            try:
                self._run()
            except BaseException as error:
                pause_s = self._loop.died(error)
            else:
                return
            if pause_s is None:
                self._died(str(self._loop.trouble))
                return
            if self._closing.wait(pause_s):
                return


async def keep_running(name: str, run: Callable[[], Awaitable[object]]) -> None:
    """As :class:`SupervisedThread` for a task of an event loop: awaits ``run`` until it returns, or
    the task is cancelled."""
    loop, is_dead = _Loop(name, restarts=True), False
    try:
        while True:
            try:
                await run()
            except Exception as error:
                await asyncio.sleep(loop.died(error) or 0)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                loop.died(error)
                is_dead = True
                raise
            else:
                return
    finally:
        if not is_dead:
            _registry.forget(loop)
