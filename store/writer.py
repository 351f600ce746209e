"""Group commit: the puts that are waiting go into one transaction, all shards together (design §2.7).

One commit costs one fsync, whatever it carries. While one group is being committed the next one gathers, and for a short while after it, as long as the
callers that were answered just now come back with more: so the group grows with the load, and a single put alone waits for nobody. An answer is given only
after the commit of its group: acknowledged means on disk (E5).

Order: groups are committed one after another, calls within a group in the order of arrival, so a put acknowledged before another began comes
first in the log (I12).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from store.cells import NewCell, PutResult
from store.engines.contract import Engine
from store.errors import InvalidRequest, Overloaded, StorageUnavailable
from store.limits import BATCH_CELLS_MAX, GROUP_BYTES_MAX, GROUP_CELLS_MAX, WRITE_QUEUE_BYTES_MAX, WRITE_QUEUE_CELLS_MAX
from store.put_answers import PutAnswer, Then, answer_all

_CLOSE_TIMEOUT_S: Final = 30.0
"""How long ``close`` waits for the queue to be written: 50,000 cells take a few seconds on a slow disk."""

_GATHER_SHARE: Final = 0.5
"""How long the next group may wait for the callers of the last one to come back, as a share of the time that the last one took to commit. A writer that never
waits finds half of its callers in the queue, the others not back yet, and writes two groups where one would do: what a transaction costs whatever it
carries (the disk, a statement per shard) is paid twice."""

_GATHER_PAUSE_S: Final = 0.0003
"""Nobody has come back for so long: the others will not, or take longer than is worth waiting for. A caller in this process needs some 20 microseconds from its
answer to its next put."""


OnResults = Callable[[Sequence[NewCell], Sequence[PutResult]], None]


class GroupCommitWriter:
    """One thread that owns the puts of this process to one commit group of an engine. ``on_commit`` is called after each commit, on that thread; so is
    ``on_results``, when the callers have their answers: with the cells, and what each came to."""

    def __init__(self, engine: Engine, on_commit: Callable[[], None], group: str = "", on_results: OnResults | None = None) -> None:
        self._engine = engine
        self._on_commit = on_commit
        self._on_results = on_results
        self._waiting: deque[PutAnswer] = deque()
        self._waiting_cells = self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        self._wanted = 1
        """Calls in the queue at which the writer is woken."""
        self._expected = 0
        """Calls in the queue when all callers have come back that were there when the last group was answered."""
        self._gather_until_s = 0.0
        self._thread = threading.Thread(target=self._run, name=f"writer-{group or engine.datastore}", daemon=True)
        self._thread.start()

    def submit(self, cells: Sequence[NewCell], then: Then | None = None) -> PutAnswer:
        """Queues one call's cells; the answer gives their results after the commit, or the error of the whole group. ``then`` is called with it when it is
        there, on the writer's thread.

        Raises Overloaded (nothing written) when too many cells, or bytes, are waiting, InvalidRequest when the call holds too many.
        """
        if len(cells) > BATCH_CELLS_MAX:
            raise InvalidRequest(f"a put call of {len(cells)} cells; at most {BATCH_CELLS_MAX} are allowed in one")
        call = PutAnswer(cells, self._take_back, then)
        if not cells:
            answer_all([call], [])
            return call
        body_bytes = call.body_bytes
        with self._changed:
            if self._closed:
                raise StorageUnavailable(f"datastore {self._engine.datastore} is closed")
            if self._waiting_cells + len(cells) > WRITE_QUEUE_CELLS_MAX:
                raise Overloaded(f"{self._waiting_cells} cells are waiting to be written, at most {WRITE_QUEUE_CELLS_MAX} may; try again shortly")
            # A call larger than the limit itself is taken when nothing else waits.
            if self._waiting_bytes and self._waiting_bytes + body_bytes > WRITE_QUEUE_BYTES_MAX:
                raise Overloaded(f"{self._waiting_bytes} bytes are waiting to be written, at most {WRITE_QUEUE_BYTES_MAX} may; try again shortly")
            self._waiting.append(call)
            self._waiting_cells += len(cells)
            self._waiting_bytes += body_bytes
            if len(self._waiting) >= self._wanted:
                self._changed.notify()
        return call

    def close(self) -> None:
        """Writes what is waiting, then ends the thread. Later calls raise StorageUnavailable."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                self._gather()
                group = self._take_group()
            self._write(group)

    def _gather(self) -> None:
        """Waits, while they come, for those who were answered just now. Nothing is taken from the queue yet: calls can still be taken back."""
        self._wanted = self._expected
        while (before := len(self._waiting)) < self._expected and self._waiting_cells < GROUP_CELLS_MAX and not self._closed:
            left_s = self._gather_until_s - time.perf_counter()
            if left_s <= 0:
                break
            self._changed.wait(min(_GATHER_PAUSE_S, left_s))
            if len(self._waiting) == before:
                break
        self._wanted = 1

    def _take_group(self) -> list[PutAnswer]:
        group: list[PutAnswer] = []
        cells = body_bytes = 0
        while self._waiting:
            call = self._waiting[0]
            if cells + len(call.cells) > GROUP_CELLS_MAX or (body_bytes and body_bytes + call.body_bytes > GROUP_BYTES_MAX):
                break
            self._left(self._waiting.popleft())
            group.append(call)
            cells += len(call.cells)
            body_bytes += call.body_bytes
        return group

    def _take_back(self, call: PutAnswer) -> bool:
        with self._changed:
            if call not in self._waiting:
                return False
            self._waiting.remove(call)
            self._left(call)
            return True

    def _left(self, call: PutAnswer) -> None:
        self._waiting_cells -= len(call.cells)
        self._waiting_bytes -= call.body_bytes

    def _write(self, group: Sequence[PutAnswer]) -> None:
        cells = [cell for call in group for cell in call.cells]
        started_s = time.perf_counter()
        try:
            results = self._engine.put(cells)
        except BaseException as error:  # the callers must hear of it, whatever it is
            answer_all(group, [], error)
            return
        self._on_commit()
        ended_s = time.perf_counter()
        self._gather_until_s = ended_s + _GATHER_SHARE * (ended_s - started_s)
        self._expected = len(self._waiting) + len(group)
        answer_all(group, results)
        if self._on_results is not None:
            self._on_results(cells, results)
