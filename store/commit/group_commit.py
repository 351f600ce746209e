"""Group commit: the puts that are waiting go into one transaction, all shards together.

One commit costs one fsync, for one put or many. While one group is being committed the next one
gathers. It gathers for a short while longer, as long as the callers that were just answered return
with more. So the group grows with the load, and a single put alone waits for nobody. An answer is
given only after the commit of its group: acknowledged means on disk (E5).

Order: groups are committed one after another, calls within a group in the order of arrival. So a
put acknowledged before another began comes first in the log (I12).

Every call gets an answer, after any error. An error of a hook is logged: the group is committed,
and its callers get their results. An error before the engine is asked has written nothing. Any
other that the engine did not raise on purpose leaves the outcome unknown. The thread then takes the
next group.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, ParamSpec

from cellfeed.store.background import SupervisedThread
from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.commit.put_answers import PutAnswer, Then, answer_all, answer_rest
from cellfeed.store.commit.write_queue import WriteQueue
from cellfeed.store.commit.writer_tally import WriterTally
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.errors import CellfeedError, InvalidRequest, OutcomeUnknown, StorageUnavailable
from cellfeed.store.limits import BATCH_CELLS_MAX, GROUP_CELLS_MAX
from cellfeed.store.progress import Watch
from cellfeed.store.repeated_warnings import RepeatedWarning

_CLOSE_TIMEOUT_S: Final = 30.0
"""How long ``close`` waits for the queue to be written: 50,000 cells take a few seconds on a slow
disk."""

_GATHER_SHARE: Final = 0.5
"""How long the next group may wait for the last one's callers to return, as a share of that group's
commit time. A writer that never waits finds half of its callers in the queue, the others not back
yet. It writes two groups where one would do: the fixed costs of a transaction (the disk, a
statement per shard) are paid twice."""

_GATHER_PAUSE_S: Final = 0.0003
"""Nobody has come back for so long: the others will not, or take longer than is worth waiting for.
A caller in this process needs some 20 microseconds from its answer to its next put."""


_log: Final = logging.getLogger("cellfeed.writer")

P = ParamSpec("P")
OnResults = Callable[[Sequence[NewCell], Sequence[PutResult]], None]


class GroupCommitWriter:
    """One thread that owns the puts of this process to one commit group of an engine. ``on_commit``
    is called after each commit, on that thread; so is ``on_results``, when the callers have their
    answers: with the cells, and the result of each."""

    def __init__(
        self,
        engine: Engine,
        on_commit: Callable[[], None],
        group: str = "",
        on_results: OnResults | None = None,
    ) -> None:
        self._engine = engine
        self._on_commit = on_commit
        self._on_results = on_results
        self._waiting = WriteQueue()
        self._changed = threading.Condition()
        self._closed = False
        self._wanted = 1
        """Calls in the queue at which the writer is woken."""
        self._expected = 0
        """Calls in the queue when all callers have come back that were there when the last group
        was answered."""
        self._gather_until_s = 0.0
        self._taken: list[PutAnswer] = []
        """The group under way."""
        self._begun = False
        """Whether the engine has been asked to write it."""
        self._ended_because: str | None = None
        self._hook_failed = RepeatedWarning(_log)
        self.tally = WriterTally()
        name = f"writer-{group or engine.datastore}"
        self._watch = Watch(name, "writer", is_idle=True)
        self._thread = SupervisedThread(name, self._run, died=self._end)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise StorageUnavailable(
                f"nothing written: the system gives no thread to write with: {error}"
            ) from error

    def queue(self, cells: Sequence[NewCell], then: Then | None = None) -> PutAnswer:
        """Queues one call's cells; the answer gives their results after the commit, or the error of
        the whole group. ``then`` is called with it when it is there, on the writer's thread.

        Raises Overloaded (nothing written) when too many cells, or bytes, are waiting,
        InvalidRequest when the call holds too many.
        """
        if len(cells) > BATCH_CELLS_MAX:
            raise InvalidRequest(
                f"a put call of {len(cells)} cells; at most {BATCH_CELLS_MAX} are allowed in one"
            )
        call = PutAnswer(cells, self._take_back, then)
        if not cells:
            answer_all([call], [])
            return call
        with self._changed:
            if self._ended_because is not None:
                raise StorageUnavailable(f"nothing written: {self._ended_because}")
            if self._closed:
                raise StorageUnavailable(f"datastore {self._engine.datastore} is closed")
            if not self._waiting:
                self.tally.arrived()
            self._waiting.add(call)
            self._watch.waits()
            if len(self._waiting) >= self._wanted:
                self._changed.notify()
        return call

    def close(self) -> None:
        """Writes the waiting cells, then ends the thread. Later calls raise StorageUnavailable."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_CLOSE_TIMEOUT_S)
        self._watch.close()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._watch.done(more=bool(self._waiting))
                    self._changed.wait_for(lambda: self._waiting or self._closed)
                    if not self._waiting:
                        return
                    self._gather()
                    self._take_group()
                self._write()
        except BaseException as error:
            self._fail_taken(error)
            raise

    def _fail_taken(self, error: BaseException) -> None:
        """Answers those of the group under way that have no answer."""
        group, self._taken = self._taken, []
        with self._changed:
            self._waiting.recount()
        if self._begun:
            answer_rest(group, _unknown(error))
        else:
            answer_rest(
                group,
                StorageUnavailable(
                    f"nothing written: {type(error).__name__} before the write began"
                ),
            )

    def _end(self, reason: str) -> None:
        with self._changed:
            self._ended_because = reason
            waiting, self._waiting = list(self._waiting), WriteQueue()
        answer_rest(waiting, StorageUnavailable(f"nothing written: {reason}"))

    def _gather(self) -> None:
        """Waits, while they come, for the callers who were answered just now. Nothing is taken from
        the queue yet: calls can still be taken back."""
        self._wanted = self._expected
        while (
            (before := len(self._waiting)) < self._expected
            and self._waiting.cells < GROUP_CELLS_MAX
            and not self._closed
        ):
            left_s = self._gather_until_s - time.perf_counter()
            if left_s <= 0:
                break
            self._changed.wait(min(_GATHER_PAUSE_S, left_s))
            if len(self._waiting) == before:
                break
        self._wanted = 1

    def _take_group(self) -> None:
        self._begun = False
        self._waiting.take_group(self._taken)
        self.tally.taken()

    def _take_back(self, call: PutAnswer) -> bool:
        with self._changed:
            return self._waiting.remove(call)

    def _write(self) -> None:
        group = self._taken
        cells = [cell for call in group for cell in call.cells]
        started_s = time.perf_counter()
        self._begun = True
        try:
            results = self._engine.put(cells)
            if len(results) != len(cells):
                raise OutcomeUnknown(
                    f"the engine gave {len(results)} results for {len(cells)} cells; put the same"
                    " cells again to learn their outcome"
                )
            history = self._engine.history.history_id
            results = [result.with_token(history) for result in results]
        except BaseException as error:  # the callers must hear of any error
            self._failed(group, error)
            return
        self._call_hook(self._on_commit)
        ended_s = time.perf_counter()
        self.tally.committed(len(cells), ended_s - started_s)
        self._gather_until_s = ended_s + _GATHER_SHARE * (ended_s - started_s)
        self._expected = len(self._waiting) + len(group)
        answer_all(group, results)
        self._taken = []
        if self._on_results is not None:
            self._call_hook(self._on_results, cells, results)

    def _failed(self, group: Sequence[PutAnswer], error: BaseException) -> None:
        if isinstance(error, Exception) and not isinstance(error, CellfeedError):
            _log.error("a group of %d puts failed by a defect", len(group), exc_info=error)
            error = _unknown(error)
        answer_all(group, [], error)
        self._taken = []

    def _call_hook(self, hook: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            hook(*args, **kwargs)
        except Exception as error:
            self._hook_failed.warn(
                "the cells are stored, but a step after the commit failed: %r",
                error,
                exc_info=error,
            )


def _unknown(error: BaseException) -> OutcomeUnknown:
    unknown = OutcomeUnknown(
        f"{type(error).__name__} while the cells were written; put the same cells again to learn"
        " whether they were"
    )
    unknown.__cause__ = error
    return unknown
