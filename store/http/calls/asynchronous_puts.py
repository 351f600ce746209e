"""Shared puts of tasks: a task of the client sends the waiting puts.

Invariant: every put of a request that is under way has its future set exactly once, also when the
task that sends is cancelled. A caller's cancellation ends its own wait and nothing else: the
request that carries its cell goes to its end.
"""

from __future__ import annotations

import asyncio
import threading

from cellfeed.store import forks
from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.errors import CellfeedError, OutcomeUnknown
from cellfeed.store.http.calls.asynchronous import Asynchronous
from cellfeed.store.http.calls.datastore import DatastoreCalls
from cellfeed.store.http.calls.shared_puts import (
    PATIENCE_S,
    Queue,
    Together,
    send_together,
    settle,
)


class _Put:
    __slots__ = ("cell", "deadline", "known")

    def __init__(self, cell: NewCell, deadline: float, loop: asyncio.AbstractEventLoop) -> None:
        self.cell = cell
        self.deadline = deadline
        self.known: asyncio.Future[PutResult | CellfeedError] = loop.create_future()
        """The result of its shared request."""


class _Shared:
    """The queue of one loop in one process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.generation = forks.generation
        self.queue: Queue[_Put] = Queue()
        self.senders: set[asyncio.Task[None]] = set()


class AsynchronousPuts:
    """Any number of loops and tasks may use it."""

    def __init__(self, calls: DatastoreCalls, run: Asynchronous) -> None:
        self._calls = calls
        self._run = run
        self._here = threading.local()

    async def put(self, cell: NewCell) -> PutResult:
        """Writes one checked cell. Raises its error."""
        shared = self._shared()
        put = _Put(cell, self._calls.deadline(), shared.loop)
        alone = shared.queue.enter(put)
        if alone is not None:
            try:
                return (
                    await self._run.run(self._calls.put_new_cell(cell, put.deadline))
                ).or_raise()
            finally:
                self._start(shared, shared.queue.leave(alone))
        overtaking = shared.loop.call_later(
            PATIENCE_S, lambda: self._start(shared, shared.queue.overtake(put))
        )
        try:
            known = await put.known
        finally:
            overtaking.cancel()
            shared.queue.withdraw(put)
        return await self._run.run(settle(self._calls, put, known))

    def _shared(self) -> _Shared:
        loop = asyncio.get_running_loop()
        shared: _Shared | None = getattr(self._here, "shared", None)
        if shared is None or shared.loop is not loop or shared.generation != forks.generation:
            shared = self._here.shared = _Shared(loop)
        return shared

    def _start(self, shared: _Shared, request: Together[_Put] | None) -> None:
        if request is not None:
            sender = shared.loop.create_task(self._send(shared, request))
            shared.senders.add(sender)
            sender.add_done_callback(shared.senders.discard)

    async def _send(self, shared: _Shared, request: Together[_Put]) -> None:
        results: list[PutResult | CellfeedError] = []
        try:
            results = await self._run.run(send_together(self._calls, request))
        except asyncio.CancelledError:
            # The loop ends. Puts that wait have timers of their own, should it continue.
            shared.queue.abandon(request)
            raise
        else:
            self._start(shared, shared.queue.leave(request))
        finally:
            interrupted = OutcomeUnknown("the task that sent it was cancelled")
            for index, put in enumerate(request.puts):
                if not put.known.done():
                    put.known.set_result(results[index] if results else interrupted)
