"""One group commit per commit group: a cluster that is away holds up nobody else's puts.

Cells of one call that lie in several groups are committed apart, each all or none; the call's
answer comes when all of them have one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from cellfeed.store import forks
from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.cells.sharding import shards_of
from cellfeed.store.commit.group_commit import GroupCommitWriter, OnResults
from cellfeed.store.commit.put_answers import PutAnswer, Then, answer_all
from cellfeed.store.commit.writer_tally import WriterTally
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.errors import CellfeedError, OutcomeUnknown, StorageUnavailable

_LOOK_S: Final = 1.0
"""How often it is asked whether all shards are still in one group: they are not any more when the
first of them has moved to another cluster. Until that is noticed the engine divides the cells."""


class Writers:
    """A :class:`GroupCommitWriter` for each commit group of the engine, made when its first cell
    comes."""

    def __init__(
        self, engine: Engine, on_commit: Callable[[], None], on_results: OnResults | None = None
    ) -> None:
        self._engine, self._on_commit, self._on_results = engine, on_commit, on_results
        self._lock = threading.Lock()
        self._generation = forks.generation
        self._closed = False
        self._writers: dict[str, GroupCommitWriter] = {}
        self._one_group = self._is_one_group()
        self._looked_at_s = time.monotonic()
        self._first = self._writer(engine.commit_group(0))

    def queue_by_group(self, cells: Sequence[NewCell], then: Then | None = None) -> PutAnswer:
        """Queues one call's cells; see :meth:`GroupCommitWriter.queue`. With several groups an
        error of one is its cells' own, unless all have failed."""
        if self._generation != forks.generation:
            raise StorageUnavailable(
                f"datastore {self._engine.datastore} was opened before this process was forked;"
                " open it again in the child"
            )
        if (now_s := time.monotonic()) - self._looked_at_s > _LOOK_S:
            self._one_group, self._looked_at_s = self._is_one_group(), now_s
        if self._one_group or not cells:
            return self._first.queue(cells, then)
        shards = shards_of([cell.row_key for cell in cells], self._engine.shards)
        groups: dict[str, list[int]] = {}
        for index, shard in enumerate(shards):
            groups.setdefault(self._engine.commit_group(shard), []).append(index)
        if len(groups) == 1:
            return self._writer(next(iter(groups))).queue(cells, then)
        return _Gathered(cells, shards, list(groups.values()), then).queue_parts(
            [self._writer(group) for group in groups]
        )

    def _is_one_group(self) -> bool:
        return len({self._engine.commit_group(shard) for shard in range(self._engine.shards)}) == 1

    def close(self) -> None:
        """Writes the waiting cells, then ends the threads. They are the parent's: in a forked child
        there is nothing to end."""
        if self._generation != forks.generation:
            return
        with self._lock:
            self._closed = True
            writers = list(self._writers.values())
        for writer in writers:
            writer.close()

    def tallies(self) -> dict[str, WriterTally]:
        """The figures of each writer, by its commit group."""
        with self._lock:
            return {group: writer.tally for group, writer in self._writers.items()}

    def _writer(self, group: str) -> GroupCommitWriter:
        with self._lock:
            if group not in self._writers:
                self._writers[group] = GroupCommitWriter(
                    self._engine, self._on_commit, group, self._on_results
                )
                if self._closed:
                    self._writers[group].close()
            return self._writers[group]


class _Gathered:
    """The parts of one call, and the answer that they make together."""

    def __init__(
        self,
        cells: Sequence[NewCell],
        shards: Sequence[int],
        parts: Sequence[Sequence[int]],
        then: Then | None,
    ) -> None:
        self._cells, self._shards, self._parts = cells, shards, parts
        self._results: list[PutResult | None] = [None] * len(cells)
        self._errors: list[BaseException] = []
        self._left = len(parts)
        self._lock = threading.Lock()
        # It cannot be taken back as a whole: parts of it may be written already.
        self._answer = PutAnswer(cells, lambda _: False, then)

    def queue_parts(self, writers: Sequence[GroupCommitWriter]) -> PutAnswer:
        for writer, part in zip(writers, self._parts, strict=True):
            try:
                writer.queue(
                    [self._cells[index] for index in part],
                    lambda answer, part=part: self._finished(answer, part),  # type: ignore[misc]
                )
            except Exception as error:  # an error of any kind: the other parts are on their way
                self._done(part, error, [])
        return self._answer

    def _finished(self, answer: PutAnswer, part: Sequence[int]) -> None:
        try:
            results = answer.result()
        except BaseException as error:  # of the group that the part was in
            self._done(part, error, [])
        else:
            self._done(part, None, results)

    def _done(
        self, part: Sequence[int], error: BaseException | None, results: Sequence[PutResult]
    ) -> None:
        with self._lock:
            if error is not None:
                self._errors.append(error)
                results = [self._failed(self._shards[index], error) for index in part]
            for index, result in zip(part, results, strict=True):
                self._results[index] = result
            self._left -= 1
            if self._left:
                return
        if len(self._errors) == len(self._parts):
            # A part whose outcome is unknown makes the call's unknown.
            answer_all(
                [self._answer],
                [],
                next(
                    (error for error in self._errors if not getattr(error, "definite", False)),
                    self._errors[0],
                ),
            )
        else:
            answer_all([self._answer], [result for result in self._results if result is not None])

    @staticmethod
    def _failed(shard: int, error: BaseException) -> PutResult:
        if not isinstance(error, CellfeedError):
            error = OutcomeUnknown(
                f"{type(error).__name__} while the cells were written; put the same cells again to"
                " learn whether they were"
            )
        return PutResult.of_error(error, shard)
