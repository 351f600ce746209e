"""The group commit for callers of an event loop: a put waits without a thread, and the loop is
woken once for all that were answered meanwhile.

A commit answers up to thousands of puts in one moment, on the writer's thread. Each is put into a
box that the loop empties; only the first one since it was emptied last wakes the loop, for a
wake-up costs more than an answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any

from cellfeed.store.cells.cell import NewCell, PutResult
from cellfeed.store.commit.put_answers import PutAnswer
from cellfeed.store.datastore import Datastore
from cellfeed.store.limits import PUT_TIMEOUT_S

Answered = asyncio.Future[bool]
"""Of a put that waits: True when its answer is there, False when its time is over."""


class LoopCommits:
    """Puts of one event loop, the one that runs when it is made."""

    def __init__(self, datastore: Datastore) -> None:
        self._datastore = datastore
        self._loop = asyncio.get_running_loop()
        self._answered: deque[Answered] = deque()
        self._woken = False

    def put(self, cells: Sequence[NewCell]) -> Coroutine[Any, Any, list[PutResult]]:
        """Queues one call's cells; what is returned is to be awaited, and waits for their commit
        without ever giving one up that is under way.

        Raises what :meth:`cellfeed.store.datastore.Datastore.put_soon` raises; awaited, what the
        cells came to, or StorageUnavailable (nothing written) or OutcomeUnknown when there was no
        commit within ``PUT_TIMEOUT_S``.
        """
        answered: Answered = self._loop.create_future()
        return self._committed(
            self._datastore.put_soon(cells, lambda _: self._tell(answered)), answered
        )

    async def _committed(self, answer: PutAnswer, answered: Answered) -> list[PutResult]:
        if not answer.done():
            time_over = self._loop.call_later(PUT_TIMEOUT_S, _settle, answered, False)
            try:
                in_time = await answered
            finally:
                time_over.cancel()
            if not in_time and not answer.done():
                raise answer.out_of_time(PUT_TIMEOUT_S)
        return answer.result(0)

    def _tell(self, answered: Answered) -> None:
        """On the writer's thread. What is in the box before the loop is woken, or before it empties
        the box, is found there."""
        self._answered.append(answered)
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                pass  # the loop has ended, and with it those who waited
            except BaseException:
                self._woken = False  # it was not woken: the next answer wakes it for all
                raise

    def _deliver(self) -> None:
        # First: an item put in from here on wakes the loop again.
        self._woken = False
        while self._answered:
            _settle(self._answered.popleft(), True)


def _settle(answered: Answered, in_time: bool) -> None:
    if not answered.done():  # its time may be over, or its task cancelled
        answered.set_result(in_time)
