"""The answer that a caller of the group commit holds while its cells are written: the place where
their results will be.

A group has up to thousands of callers, each perhaps a thread of its own, and all are answered in
one moment. Threads that are woken all at once fight for the interpreter, with each other and with
the writer, which has the next group to write. So they are woken in a row: the writer wakes the
first one, and each wakes the next before it continues. Why the row never breaks off stands at
:func:`wake_next`. A caller without a thread of its own (one in an event loop) is called instead.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.errors import OutcomeUnknown, StorageUnavailable

Then = Callable[["PutAnswer"], None]
"""Called with an answer when it is there, in the thread that gives it: it has to be quick, and its
errors are only logged."""

_FOR_EVER: Final = -1

_log: Final = logging.getLogger("cellfeed.writer")


class PutAnswer:
    """The answer to one put call. ``cells``: those to be written; ``take_back``: takes the call out
    of its queue, and returns whether it was still there.

    A tenth of the cost of a :class:`concurrent.futures.Future`, whose condition would cost a put
    more than its share of the statements does.
    """

    __slots__ = (
        "_done",
        "_error",
        "_gate",
        "_results",
        "_row",
        "_take_back",
        "_then",
        "_waits",
        "body_bytes",
        "cells",
    )

    def __init__(
        self,
        cells: Sequence[NewCell],
        take_back: Callable[[PutAnswer], bool],
        then: Then | None = None,
    ) -> None:
        self.cells = cells
        self.body_bytes = sum([len(cell.body_json) for cell in cells])
        self._take_back = take_back
        self._then = then
        self._done = self._waits = False
        self._results: Sequence[PutResult] = ()
        self._error: BaseException | None = None
        self._row: deque[PutAnswer] = deque()
        # Closed until the answer is there; a thread that comes through leaves it open for the next.
        self._gate = Lock()
        self._gate.acquire()

    def done(self) -> bool:
        """Whether the answer is there."""
        return self._done

    def result(self, timeout_s: float | None = None) -> list[PutResult]:
        """Waits for the answer, and returns the results of the cells or raises their error. Raises
        TimeoutError when there is none after ``timeout_s`` seconds (None: waits for ever)."""
        if not self._done:
            self._wait(_FOR_EVER if timeout_s is None else timeout_s)
        if self._error is not None:
            raise self._error
        return list(self._results)

    def cancel(self) -> bool:
        """Takes the call back. True: nothing of it was or will be written, and no answer comes.
        False: it is being written, or was."""
        return self._take_back(self)

    def out_of_time(self, timeout_s: float) -> StorageUnavailable | OutcomeUnknown:
        """Takes the call back, and returns the error for its caller, which waited ``timeout_s``
        seconds. A call that still stood in the queue is definitely not written."""
        if self.cancel():
            return StorageUnavailable(
                f"nothing written: the put's turn did not come within {timeout_s} s"
            )
        return OutcomeUnknown(
            f"no commit within {timeout_s} s; put the same cells again to learn whether they were"
            " written"
        )

    def settle(
        self, results: Sequence[PutResult], error: BaseException | None, row: deque[PutAnswer]
    ) -> None:
        """Puts the answer in its place, for later callers; ``row``: the queue of answers whose
        gates are to be opened."""
        self._results, self._error, self._row = results, error, row
        self._done = True

    def open_gate(self) -> bool:
        """Lets the waiting callers through, once; returns whether one of them has not come through
        yet."""
        self._open()
        return self._waits

    def _open(self) -> None:
        try:  # noqa: SIM105 - suppress() would cost each put a third of a microsecond
            self._gate.release()
        except RuntimeError:
            pass  # it is open: somebody else was faster

    def call_then(self) -> None:
        """Calls ``then``, once."""
        then, self._then = self._then, None
        if then is not None:
            try:
                then(self)
            except Exception:
                _log.exception("a caller could not get its answer")

    def _wait(self, timeout_s: float) -> None:
        self._waits = True
        try:
            # Looked at again: from here on either the answering thread sees that somebody waits, or
            # this thread sees the answer.
            if not self._done and self._gate.acquire(timeout=timeout_s):
                self._open()
        finally:
            self._waits = False
            if self._done:
                wake_next(self._row)
        if not self._done:
            raise TimeoutError


def answer_all(
    answers: Sequence[PutAnswer], results: Sequence[PutResult], error: BaseException | None = None
) -> None:
    """Answers calls that were written together: ``results`` of the cells of all of them in order,
    or the error of all."""
    row: deque[PutAnswer] = deque()
    start = 0
    for answer in answers:
        end = start + len(answer.cells)
        answer.settle(results[start:end], error, row)
        start = end
    # Not before all are settled: each woken thread finds its own answer.
    row.extend(answers)
    wake_next(row)
    for answer in answers:
        answer.call_then()


def answer_rest(answers: Sequence[PutAnswer], error: BaseException) -> None:
    """Ends the work of :func:`answer_all` after it was cut off, or could not begin: calls without
    an answer get ``error``, and everybody who waits is woken."""
    for answer in answers:
        if not answer.done():
            answer.settle((), error, deque())
        answer.open_gate()
    for answer in answers:
        answer.call_then()


def wake_next(row: deque[PutAnswer]) -> None:
    """Opens the gates of a row's answers up to the first that somebody waits for.

    All in the row are settled. A thread says that it waits, looks for the answer a last time, and
    then goes to its gate. It says that it waits no longer when it has come through, or its time is
    over, or it was interrupted; after that it calls this. So a thread that still waits after its
    gate was opened will continue the row. When none waits, perhaps no thread will call this again,
    and the next gate is opened here. Two that continue a row at once do no harm: each answer is
    taken out once.
    """
    while True:
        try:
            answer = row.popleft()
        except IndexError:
            return
        if answer.open_gate():
            return
