"""The group commit for callers of an event loop: a put waits without a thread, and the loop is
woken once for all that were answered meanwhile.

A commit answers up to thousands of puts in one moment, on the writer's thread. Each is put into a
box that the loop empties; only the first one since it was emptied last wakes the loop, for a
wake-up costs more than an answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.commit.put_answers import PutAnswer
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError
from cellfeed.store.limits import PUT_TIMEOUT_S

Committed = Callable[[PutAnswer | CellfeedError], None]
"""Called on the loop, once: with the answer when it is there, or with the error of a put that had
no commit within ``PUT_TIMEOUT_S``."""

_log: Final = logging.getLogger("cellfeed.worker")


class LoopCommits:
    """Puts of one event loop, the one that runs when it is made."""

    def __init__(self, datastore: Datastore) -> None:
        self._datastore = datastore
        self._loop = asyncio.get_running_loop()
        self._answered: deque[_Waiting] = deque()
        self._woken = False

    def put(self, cells: Sequence[NewCell]) -> Coroutine[Any, Any, list[PutResult]]:
        """Queues one call's cells; the caller awaits the returned object, which waits for their
        commit without ever giving one up that is under way.

        Errors of :meth:`cellfeed.store.datastore.Datastore.put_soon` pass through; awaited, it
        gives the cells' results, or raises StorageUnavailable (nothing written) or OutcomeUnknown
        when there was no commit within ``PUT_TIMEOUT_S``.
        """
        answered: asyncio.Future[PutAnswer | CellfeedError] = self._loop.create_future()
        self.put_then(cells, lambda answer: _settle(answered, answer))
        return _result(answered)

    def put_then(self, cells: Sequence[NewCell], committed: Committed) -> None:
        """Queues one call's cells, as :meth:`put`; ``committed`` is called when they have an
        answer, never before this returns. Errors of ``put_soon`` pass through, and nothing is
        called then."""
        waiting = _Waiting(committed)
        answer = self._datastore.put_soon(cells, lambda _: self._answer(waiting))
        waiting.answer = answer
        waiting.time_over = self._loop.call_later(PUT_TIMEOUT_S, waiting.out_of_time)

    def _answer(self, waiting: _Waiting) -> None:
        """On the writer's thread. An answer in the box before the loop is woken, or before it
        empties the box, is found there."""
        self._answered.append(waiting)
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                pass  # the loop has ended, and its waiting callers with it
            except BaseException:
                self._woken = False  # it was not woken: the next answer wakes it for all
                raise

    def _deliver(self) -> None:
        # First: an item put in from here on wakes the loop again.
        self._woken = False
        while self._answered:
            self._answered.popleft().settle()


class _Waiting:
    """A put that waits; only its loop's thread calls it."""

    __slots__ = ("_committed", "answer", "time_over")

    def __init__(self, committed: Committed) -> None:
        self._committed: Committed | None = committed
        self.answer: PutAnswer
        self.time_over: asyncio.TimerHandle

    def settle(self) -> None:
        self.time_over.cancel()
        self._call(self.answer)

    def out_of_time(self) -> None:
        # The answer may be there, and stand in the box still.
        self._call(self.answer if self.answer.done() else self.answer.out_of_time(PUT_TIMEOUT_S))

    def _call(self, answer: PutAnswer | CellfeedError) -> None:
        committed, self._committed = self._committed, None
        if committed is not None:
            try:
                committed(answer)
            except Exception:  # the others of its commit wait behind it
                _log.exception("a caller could not get its answer")


async def _result(answered: asyncio.Future[PutAnswer | CellfeedError]) -> list[PutResult]:
    answer = await answered
    if isinstance(answer, CellfeedError):
        raise answer
    return answer.result(0)


def _settle(
    answered: asyncio.Future[PutAnswer | CellfeedError], answer: PutAnswer | CellfeedError
) -> None:
    if not answered.done():  # its task may be cancelled
        answered.set_result(answer)
