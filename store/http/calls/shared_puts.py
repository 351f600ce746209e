"""Puts of one client that are made at the same time share a request, as the store's own group
commit shares a transaction.

A put that finds no request under way is sent at once: nobody waits for company. Those that come
meanwhile wait, and one request carries all of them as soon as that one has ended. Each keeps its
own deadline and gets its own outcome. A shared request may leave
a cell open, or be refused as a whole. Then each of its cells is sent alone: a bad cell fails
alone.

A worker may hang, or wait for one cluster of several. So a shared request ends after ``SHARED_S``,
and its cells are sent alone. While any request has been under way for ``PATIENCE_S``, new puts are
sent alone too, and those that wait are sent beside it.

This module has no I/O and no locks; :mod:`cellfeed.store.http.calls.blocking_puts` and
:mod:`cellfeed.store.http.calls.asynchronous_puts` wait, each in its own way.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final, Generic, Protocol, TypeVar

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.errors import CellfeedError
from cellfeed.store.http.calls.datastore import DatastoreCalls
from cellfeed.store.http.calls.steps import Steps
from cellfeed.store.limits import BATCH_BYTES_MAX, BATCH_CELLS_MAX

PATIENCE_S: Final = 0.25
"""How long a request may be under way before puts no longer wait for it. A commit takes
milliseconds."""

SHARED_S: Final = 1.0
"""The deadline of a shared request. Its cells are then sent alone, which is safe: a put is
idempotent."""


class WaitingPut(Protocol):
    """A put and its deadline (monotonic)."""

    @property
    def cell(self) -> NewCell: ...

    @property
    def deadline(self) -> float: ...


W = TypeVar("W", bound=WaitingPut)


class Together(Generic[W]):
    """Puts of one request, in order; the caller of the first sends it."""

    def __init__(self, puts: list[W]) -> None:
        self.puts = puts
        self.since = time.monotonic()


class Queue(Generic[W]):
    """Which puts are sent together. Not safe for threads by itself.

    :meth:`enter`, :meth:`leave` and :meth:`overtake` return a request to be sent. Its sender calls
    :meth:`leave` or :meth:`abandon` once, after any outcome.
    """

    def __init__(self) -> None:
        self._waiting: deque[W] = deque()
        self._under_way: list[Together[W]] = []

    def enter(self, put: W) -> Together[W] | None:
        """The request to send now, of ``put`` alone. None: it waits for another to end."""
        if self._under_way and time.monotonic() - self._under_way[0].since < PATIENCE_S:
            self._waiting.append(put)
            return None
        return self._begin([put])

    def leave(self, request: Together[W]) -> Together[W] | None:
        """A request has ended: the next one, if puts wait."""
        self._under_way.remove(request)
        return self._next()

    def abandon(self, request: Together[W]) -> None:
        """A request has ended, and its sender sends no other."""
        self._under_way.remove(request)

    def overtake(self, put: W) -> Together[W] | None:
        """The request to send now, ``put`` first, because it has waited for ``PATIENCE_S``. None:
        it is in a request under way."""
        if put not in self._waiting:
            return None
        self._waiting.remove(put)
        self._waiting.appendleft(put)
        return self._next()

    def withdraw(self, put: W) -> None:
        """Takes back a put whose caller has given up, if it waits."""
        if put in self._waiting:
            self._waiting.remove(put)

    def _next(self) -> Together[W] | None:
        puts: list[W] = []
        size = 0
        while self._waiting and len(puts) < BATCH_CELLS_MAX:
            size += len(self._waiting[0].cell.body_json)
            if puts and size > BATCH_BYTES_MAX:
                break
            puts.append(self._waiting.popleft())
        return self._begin(puts) if puts else None

    def _begin(self, puts: list[W]) -> Together[W]:
        request = Together(puts)
        self._under_way.append(request)
        return request


def send_together(
    calls: DatastoreCalls, request: Together[W]
) -> Steps[list[PutResult | CellfeedError]]:
    """Sends a request. For each of its puts the final result, or the value that :func:`settle`
    needs."""
    deadline = min(time.monotonic() + SHARED_S, *(put.deadline for put in request.puts))
    try:
        results = yield from calls.put_new_cells([put.cell for put in request.puts], deadline)
    except CellfeedError as error:
        return [error] * len(request.puts)
    return [
        result.error
        if result.error is not None
        and (result.error.retriable or result.outcome is Outcome.UNKNOWN)
        else result
        for result in results
    ]


def settle(
    calls: DatastoreCalls, put: WaitingPut, known: PutResult | CellfeedError
) -> Steps[PutResult]:
    """The result of a put after its shared request. Raises the errors of a request of the cell
    alone."""
    if isinstance(known, PutResult):
        return known.or_raise()
    if time.monotonic() >= put.deadline:
        raise known
    alone = yield from calls.put_new_cell(put.cell, put.deadline, [] if known.definite else [known])
    return alone.or_raise()
