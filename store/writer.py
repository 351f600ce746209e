"""Group commit: the puts that are waiting go into one transaction, all shards together (design §2.7).

One commit costs one fsync, whatever it carries. While one group is being committed the next one gathers, so the group grows with the load and
a single put alone waits for nobody. An answer is given only after the commit of its group: acknowledged means on disk (E5).

Order: groups are committed one after another, calls within a group in the order of arrival, so a put acknowledged before another began comes
first in the log (I12).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple

from store.cells import NewCell, PutResult
from store.engines.contract import Engine
from store.errors import InvalidRequest, Overloaded, StorageUnavailable
from store.limits import BATCH_CELLS_MAX, GROUP_BYTES_MAX, GROUP_CELLS_MAX, WRITE_QUEUE_BYTES_MAX, WRITE_QUEUE_CELLS_MAX

_CLOSE_TIMEOUT_S: Final = 30.0
"""How long ``close`` waits for the queue to be written: 50,000 cells take a few seconds on a slow disk."""


OnResults = Callable[[Sequence[NewCell], Sequence[PutResult]], None]


class _Call(NamedTuple):
    cells: Sequence[NewCell]
    body_bytes: int
    answer: Future[list[PutResult]]


class GroupCommitWriter:
    """One thread that owns the puts of this process to one commit group of an engine. ``on_commit`` is called after each commit, on that thread; so is
    ``on_results``, when the callers have their answers: with the cells, and what each came to."""

    def __init__(self, engine: Engine, on_commit: Callable[[], None], group: str = "", on_results: OnResults | None = None) -> None:
        self._engine = engine
        self._on_commit = on_commit
        self._on_results = on_results
        self._waiting: deque[_Call] = deque()
        self._waiting_cells = self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"writer-{group or engine.datastore}", daemon=True)
        self._thread.start()

    def submit(self, cells: Sequence[NewCell]) -> Future[list[PutResult]]:
        """Queues one call's cells; the future gives their results after the commit, or the error of the whole group.

        Raises Overloaded (nothing written) when too many cells, or bytes, are waiting, InvalidRequest when the call holds too many.
        """
        if len(cells) > BATCH_CELLS_MAX:
            raise InvalidRequest(f"a put call of {len(cells)} cells; at most {BATCH_CELLS_MAX} are allowed in one")
        answer: Future[list[PutResult]] = Future()
        if not cells:
            answer.set_result([])
            return answer
        body_bytes = sum([len(cell.body_json) for cell in cells])
        with self._changed:
            if self._closed:
                raise StorageUnavailable(f"datastore {self._engine.datastore} is closed")
            if self._waiting_cells + len(cells) > WRITE_QUEUE_CELLS_MAX:
                raise Overloaded(f"{self._waiting_cells} cells are waiting to be written, at most {WRITE_QUEUE_CELLS_MAX} may; try again shortly")
            # A call larger than the limit itself is taken when nothing else waits.
            if self._waiting_bytes and self._waiting_bytes + body_bytes > WRITE_QUEUE_BYTES_MAX:
                raise Overloaded(f"{self._waiting_bytes} bytes are waiting to be written, at most {WRITE_QUEUE_BYTES_MAX} may; try again shortly")
            self._waiting.append(_Call(cells, body_bytes, answer))
            self._waiting_cells += len(cells)
            self._waiting_bytes += body_bytes
            self._changed.notify()
        return answer

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
                group = self._take_group()
            self._write(group)

    def _take_group(self) -> list[_Call]:
        group: list[_Call] = []
        cells = body_bytes = 0
        while self._waiting:
            call = self._waiting[0]
            if cells + len(call.cells) > GROUP_CELLS_MAX or (body_bytes and body_bytes + call.body_bytes > GROUP_BYTES_MAX):
                break
            self._waiting.popleft()
            self._waiting_cells -= len(call.cells)
            self._waiting_bytes -= call.body_bytes
            if call.answer.set_running_or_notify_cancel():
                group.append(call)
                cells += len(call.cells)
                body_bytes += call.body_bytes
        return group

    def _write(self, group: Sequence[_Call]) -> None:
        cells = [cell for call in group for cell in call.cells]
        if not cells:
            return
        try:
            results = self._engine.put(cells)
        except BaseException as error:  # the callers must hear of it, whatever it is
            for call in group:
                call.answer.set_exception(error)
            return
        self._on_commit()
        start = 0
        for call in group:
            call.answer.set_result(results[start : start + len(call.cells)])
            start += len(call.cells)
        if self._on_results is not None:
            self._on_results(cells, results)
