"""Blocking reads off the event loop: a few threads, a bounded queue, a deadline.

Reads that wait for a server get a thread each. Reads of files wait only for the interpreter's lock,
which they give up at every row. So each read of a file costs a change of threads on the way there
and one on the way back. It costs more where the loop or a second reader wants the lock meanwhile:
more CPU than the read itself. So these are done **in turns**: all reads that wait at that moment go
to one thread together, and their answers return together, while the loop sleeps.

A turn that lasts longer than ``TURN_S`` holds nobody up: the loop answers the reads that are done,
takes back those not begun, and gives them to another thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from cellfeed.store.background import SupervisedThread
from cellfeed.store.errors import Overloaded, StorageUnavailable

READ_THREADS: Final = 8
"""Of reads that wait for a server: so many are under way, and one node that is slow does not hold
up all of them."""

FILE_READ_THREADS: Final = 2
"""Of reads that are done in turns. Two, so that a small read need not wait for a large one; more
would only wait for each other."""

READS_PER_TURN: Final = 16
"""Reads of one turn. The first one's answer waits for the last one's: some 3 ms with queries of an
index, less with reads of one cell."""

TURN_S: Final = 0.01
"""How long a turn has the reads to itself, in seconds: longer than ``READS_PER_TURN`` small reads
take."""

READS_WAITING_MAX: Final = 1_000
"""Reads waiting or running. Past that a read is refused as ``overloaded``."""

READ_TIMEOUT_S: Final = 10.0
"""After this a read is answered as ``storage_unavailable``; its thread is free again when the
engine answers."""

P = ParamSpec("P")
T = TypeVar("T")
_Read = tuple["asyncio.Future[Any]", Callable[[], Any]]


class _Turn(NamedTuple):
    """The work of a thread. It takes ``reads`` from the left, the loop may take them from the
    right; ``done`` are futures with their result or error."""

    loop: asyncio.AbstractEventLoop
    reads: deque[_Read]
    done: deque[tuple[asyncio.Future[Any], Any, BaseException | None]]


class ReadPool:
    """Runs the datastore's blocking calls for one event loop. Its own, because a thread pool of the
    standard library costs several times as much a call.

    ``in_turns``: see the module. All but :meth:`close` is called in the loop's thread.
    """

    def __init__(self, threads: int = READ_THREADS, *, in_turns: bool = False) -> None:
        self._threads = threads
        self._in_turns = in_turns
        self._turns: SimpleQueue[_Turn | None] = SimpleQueue()
        self._free = threads
        self._reads: deque[_Read] = deque()
        """Those that no thread has been given."""
        self._current: _Turn | None = None
        """The turn that the next one waits for."""
        self._look_later: asyncio.TimerHandle | None = None
        self._is_due = False
        self._waiting = 0
        self._closed = False
        for number in range(threads):
            SupervisedThread(f"read-{number}", self._work).start()

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The call's result. Raises its error, Overloaded, or StorageUnavailable after
        ``READ_TIMEOUT_S``."""
        answer, deadline = self._queued(partial(call, *args, **kwargs))
        try:
            return await answer
        finally:
            deadline.cancel()

    def run_then(self, call: Callable[[], T], then: Callable[[asyncio.Future[T]], object]) -> None:
        """Calls ``then`` with the result or error that :meth:`run` would have, but for Overloaded,
        which is raised here."""
        answer, deadline = self._queued(call)

        def answered(answer: asyncio.Future[T]) -> None:
            deadline.cancel()
            then(answer)

        answer.add_done_callback(answered)

    def _queued(self, call: Callable[[], T]) -> tuple[asyncio.Future[T], asyncio.TimerHandle]:
        if self._waiting >= READS_WAITING_MAX:
            raise Overloaded(
                f"{self._waiting} reads are waiting, at most {READS_WAITING_MAX} may; try again"
                " shortly"
            )
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._waiting += 1
        self._reads.append((answer, call))
        if not self._in_turns:
            self._hand_over(loop)
        elif not self._is_due:
            self._is_due = True
            loop.call_soon(self._hand_over, loop)  # behind the other requests that have come by now
        return answer, loop.call_later(READ_TIMEOUT_S, _time_out, answer)

    def close(self) -> None:
        """Lets running reads end; waiting ones are dropped."""
        self._closed = True
        for _ in range(self._threads):
            self._turns.put(None)

    # --- in the loop's thread ---------------------------------------------------------------------

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_due = False
        while self._reads and self._free and self._current is None:
            count = min(len(self._reads), READS_PER_TURN if self._in_turns else 1)
            turn = _Turn(loop, deque(self._reads.popleft() for _ in range(count)), deque())
            if self._in_turns:
                self._current = turn
                self._look_later = loop.call_later(TURN_S, self._look_at, turn)
            self._free -= 1
            self._turns.put(turn)

    def _look_at(self, turn: _Turn) -> None:
        """The turn has taken long: its thread keeps the read that it is at, and nothing else."""
        while turn.reads:
            with suppress(IndexError):  # the thread has taken the last one just now
                self._reads.appendleft(turn.reads.pop())
        self._answer(turn)
        self._current = None
        self._hand_over(turn.loop)

    def _ended(self, turn: _Turn) -> None:
        self._free += 1
        if turn is self._current and self._look_later is not None:
            self._look_later.cancel()
            self._current = None
        self._answer(turn)
        self._hand_over(turn.loop)

    def _answer(self, turn: _Turn) -> None:
        while turn.done:
            answer, result, error = turn.done.popleft()
            self._waiting -= 1
            if answer.done():
                continue
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)

    # --- in the threads ---------------------------------------------------------------------------

    def _work(self) -> None:
        while (turn := self._turns.get()) is not None:
            try:
                with suppress(IndexError):  # nothing is left
                    while True:
                        answer, call = turn.reads.popleft()
                        turn.done.append((answer, *self._outcome(answer, call)))
            finally:
                # also of a turn that a defect broke off: the loop gives it another thread's time
                with suppress(RuntimeError):  # the loop has ended
                    turn.loop.call_soon_threadsafe(self._ended, turn)

    def _outcome(
        self, answer: asyncio.Future[Any], call: Callable[[], Any]
    ) -> tuple[Any, BaseException | None]:
        # Nobody waits any more for one that timed out in the queue, or whose caller has gone.
        if self._closed or answer.done():
            return None, StorageUnavailable(
                "not read: the worker is ending, or nobody waits for it any more"
            )
        try:
            return call(), None
        except BaseException as error:
            return None, error


def _time_out(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(
            StorageUnavailable(f"no answer from the storage within {READ_TIMEOUT_S} s")
        )
