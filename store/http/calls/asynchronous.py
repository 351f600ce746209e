"""Calls in an event loop: connections that call back.

Connections belong to the loop that made them, and to the process: a client that is used in
another loop, thread or child of a ``fork()`` makes new ones there. A request has one deadline. A
cancelled call closes its connection, because the answer may still come.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar, cast

from cellfeed.store import forks
from cellfeed.store.errors import WrongAnswer
from cellfeed.store.http.calls.asynchronous_stream import stream_answer
from cellfeed.store.http.calls.steps import WAIT_SAID_S, Pause, Send, Steps
from cellfeed.store.http.calls.wire import (
    CONNECTIONS_KEPT_MAX,
    IDLE_S_MAX,
    Answer,
    AnswerReader,
    AttemptFailed,
    ended_early,
    no_connection,
    no_time_left,
)
from cellfeed.store.http.calls.workers import Worker

T = TypeVar("T")

_FOREIGN: Final[list[object]] = []
"""Connections of a parent process. Closing one would take it out of the parent's selector, so
they are kept and never touched."""


class Asynchronous:
    """Runs the steps of calls in the loop that runs. Any number of loops and tasks may use it.

    ``on_wait``: called in the loop, once for each call that has no answer after ``WAIT_SAID_S``,
    with the reason.
    """

    def __init__(self, on_wait: Callable[[str], None] | None = None) -> None:
        self._on_wait = on_wait
        self._is_closed = False
        self._here = threading.local()

    async def run(self, steps: Steps[T]) -> T:
        """The result of a call; errors of the call pass through."""
        say, reasons = self._on_wait, [""]
        timer = say and asyncio.get_running_loop().call_later(WAIT_SAID_S, lambda: say(reasons[0]))
        try:
            step = next(steps)
            while True:
                reasons[0] = step.why
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    step = steps.send(None)
                    continue
                try:
                    answer = await self._exchange(step)
                except AttemptFailed as failed:
                    step = steps.throw(failed)
                else:
                    step = steps.send(answer)
        except StopIteration as ended:
            return cast("T", ended.value)
        except WrongAnswer:
            self._close_idle()  # one of the connections kept is not in step with its worker
            raise
        finally:
            steps.close()
            if timer:
                timer.cancel()

    def close(self) -> None:
        """Closes the idle connections of this loop, and from now on each that a call has used."""
        self._is_closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        for idle in self._idle().values():
            while idle:
                idle.pop().close()

    async def _exchange(self, step: Send) -> Answer:
        if step.streams:
            return await stream_answer(step)
        worker = step.worker
        request, number = step.request.written(worker.name, worker.authorization())
        connection = await self._take(worker, step.deadline)
        try:
            answer = await connection.exchange(request, number, step.deadline)
        except BaseException:
            connection.close()
            raise
        if connection.is_reusable:
            self._give_back(worker, connection)
        else:
            connection.close()
        return answer

    def _idle(self) -> dict[Worker, list[_Connection]]:
        """The idle connections of the loop that runs, in this process."""
        here = self._here.__dict__
        loop = asyncio.get_running_loop()
        if here and here["generation"] != forks.generation:
            _FOREIGN.append(here.copy())
            here.clear()
        if here.get("loop") is not loop:
            here.update(loop=loop, idle={}, generation=forks.generation)
        return cast("dict[Worker, list[_Connection]]", here["idle"])

    async def _take(self, worker: Worker, deadline: float) -> _Connection:
        idle = self._idle().setdefault(worker, [])
        while idle:
            connection = idle.pop()
            if connection.is_still_open():
                return connection
            connection.close()
        try:
            async with asyncio.timeout(_left(deadline, worker.name, definite=True)):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(worker.name), worker.host, worker.port, ssl=worker.tls()
                )
        except TimeoutError:
            raise no_connection(worker.name, "timed out") from None
        except OSError as error:
            raise no_connection(worker.name, error) from None
        return connection

    def _give_back(self, worker: Worker, connection: _Connection) -> None:
        connection.idle_since = time.monotonic()
        idle = self._idle().setdefault(worker, [])
        if len(idle) < CONNECTIONS_KEPT_MAX and not self._is_closed:
            idle.append(connection)
        else:
            connection.close()


class _Connection(asyncio.Protocol):
    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._transport: asyncio.Transport
        self._reader: AnswerReader | None = None
        self._answered: asyncio.Future[None] | None = None
        self._is_open = True
        self.is_reusable = False
        self.idle_since = 0.0

    async def exchange(self, request: bytes, number: bytes, deadline: float) -> Answer:
        """Sends a request and reads the answer with its number."""
        self.is_reusable = False
        left = _left(deadline, self._worker, definite=True)
        self._reader = reader = AnswerReader(self._worker, number)
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            async with asyncio.timeout(left):
                await self._answered
        except TimeoutError:
            raise AttemptFailed(f"{self._worker}: no answer: timed out", definite=False) from None
        finally:
            self._reader = self._answered = None
        answer = reader.answer()
        self.is_reusable = reader.keeps_alive and self._is_open
        return answer

    def is_still_open(self) -> bool:
        """False when it was idle too long, the worker closed it, or sent bytes that nobody asked
        for."""
        return self._is_open and time.monotonic() - self.idle_since <= IDLE_S_MAX

    def close(self) -> None:
        self._is_open = False
        self._transport.abort()

    # --- called by the loop -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._reader is None:
            self.close()
            return
        try:
            self._reader.feed(data)
        except AttemptFailed as failed:
            self._end(failed)
        else:
            if self._reader.is_complete:
                self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_open = False
        if exc is None:
            self._end(ended_early(self._worker))
        else:
            self._end(AttemptFailed(f"{self._worker}: no answer: {exc}", definite=False))

    def _end(self, failed: AttemptFailed | None) -> None:
        if self._answered is not None and not self._answered.done():
            if failed is None:
                self._answered.set_result(None)
            else:
                self._answered.set_exception(failed)


def _left(deadline: float, worker: str, *, definite: bool) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise no_time_left(worker, definite=definite)
    return left
