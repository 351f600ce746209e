"""Shared puts of threads: the caller whose request it is sends it, and wakes the others.

Invariant: every caller in a request under way is woken once. It finds its outcome, or a request
that it has to send. That holds also when the thread that sends is interrupted. Nothing is waited
for under the queue's lock.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final

from cellfeed.store import forks
from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.errors import CellfeedError, OutcomeUnknown
from cellfeed.store.http.calls.blocking import Blocking
from cellfeed.store.http.calls.datastore import DatastoreCalls
from cellfeed.store.http.calls.shared_puts import (
    PATIENCE_S,
    Queue,
    Together,
    send_together,
    settle,
)

LATE_S_MAX: Final = 5.0
"""How long behind its deadline a caller waits for the thread that sends its put. It is reached
only where a thread was stopped twice in the same place."""


class _Put:
    __slots__ = ("_woken", "cell", "deadline", "known", "request", "row", "waits")

    def __init__(self, cell: NewCell, deadline: float) -> None:
        self.cell = cell
        self.deadline = deadline
        self.request: Together[_Put] | None = None
        """The request that this put's caller has to send."""
        self.known: PutResult | CellfeedError = OutcomeUnknown("nobody reported its outcome")
        """The result of its shared request."""
        self.row: deque[_Put] = deque()
        """The callers of its shared request that were not woken yet."""
        self.waits = True
        self._woken = threading.Lock()
        self._woken.acquire()

    def wake(self) -> None:
        self._woken.release()

    def wait(self, timeout_s: float) -> bool:
        return self._woken.acquire(timeout=timeout_s)


class _Shared:
    """The queue of one process; a child of a ``fork()`` has one of its own."""

    def __init__(self) -> None:
        self.generation = forks.generation
        self.lock = threading.Lock()
        self.queue: Queue[_Put] = Queue()


class BlockingPuts:
    """Any number of threads may use it, on both sides of a ``fork()``."""

    def __init__(self, calls: DatastoreCalls, run: Blocking) -> None:
        self._calls = calls
        self._run = run
        self._own = _Shared()

    def put(self, cell: NewCell) -> PutResult:
        """Writes one checked cell. Raises its error."""
        if self._own.generation != forks.generation:
            self._own = _Shared()  # threads of a child that come at once may make two: no harm
        shared = self._own
        put = _Put(cell, self._calls.deadline())
        with shared.lock:
            alone = shared.queue.enter(put)
        if alone is not None:
            try:
                return self._run.run(self._calls.put_new_cell(cell, put.deadline)).or_raise()
            finally:
                _pass_on(shared, alone)
        self._wait(shared, put)
        if put.request is not None:
            self._send(shared, put.request)
        return self._run.run(settle(self._calls, put, put.known))

    def _wait(self, shared: _Shared, put: _Put) -> None:
        """Until the put has an outcome, or a request that its caller has to send."""
        try:
            while not put.wait(PATIENCE_S):
                with shared.lock:
                    put.request = put.request or shared.queue.overtake(put)
                if put.request is not None:
                    return
                if time.monotonic() > put.deadline + LATE_S_MAX:
                    return
        except BaseException:
            _give_up(shared, put)
            raise
        finally:
            put.waits = False
            _wake_next(put.row)

    def _send(self, shared: _Shared, request: Together[_Put]) -> None:
        """Sends a shared request, whose first put is the caller's own, and wakes the others."""
        results: list[PutResult | CellfeedError] = []
        try:
            results = self._run.run(send_together(self._calls, request))
        finally:
            _pass_on(shared, request)
            interrupted = OutcomeUnknown("the thread that sent it was interrupted")
            row = deque(request.puts[1:])
            for index, put in enumerate(request.puts):
                put.known = results[index] if results else interrupted
                put.row = row
            _wake_next(row)


def _wake_next(row: deque[_Put]) -> None:
    """Wakes the first in the row that still waits; it wakes the next when it runs. Many threads
    woken at once would fight for the interpreter. One that no longer waits, because it was
    interrupted, may never come here again: so the row continues behind it."""
    while row:
        try:
            put = row.popleft()
        except IndexError:  # another thread has taken the last one
            return
        put.wake()
        if put.waits:
            return


def _pass_on(shared: _Shared, ended: Together[_Put]) -> None:
    """A request has ended: the sender of the next one is woken."""
    with shared.lock:
        _appoint(shared.queue.leave(ended))


def _give_up(shared: _Shared, put: _Put) -> None:
    """The thread of ``put`` was interrupted: another caller sends its request."""
    with shared.lock:
        shared.queue.withdraw(put)
        if put.request is not None:
            put.request.puts.remove(put)
            _appoint(put.request if put.request.puts else shared.queue.leave(put.request))


def _appoint(request: Together[_Put] | None) -> None:
    """Wakes the caller that sends the request. Under the lock: a caller that gives up sees its
    request, or is no longer among those that wait."""
    if request is not None:
        request.puts[0].request = request
        request.puts[0].wake()
