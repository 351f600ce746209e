"""The calls that wait for a group commit, in the order in which they came, within their limits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from cellfeed.store.commit.put_answers import PutAnswer
from cellfeed.store.errors import Overloaded
from cellfeed.store.limits import (
    GROUP_BYTES_MAX,
    GROUP_CELLS_MAX,
    WRITE_QUEUE_BYTES_MAX,
    WRITE_QUEUE_CELLS_MAX,
)


class WriteQueue:
    """Used under the writer's lock. ``cells``: how many wait."""

    def __init__(self) -> None:
        self._calls: deque[PutAnswer] = deque()
        self.cells = self._bytes = 0

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[PutAnswer]:
        return iter(self._calls)

    def add(self, call: PutAnswer) -> None:
        """Raises Overloaded, nothing written, when too many cells, or bytes, are waiting."""
        if self.cells + len(call.cells) > WRITE_QUEUE_CELLS_MAX:
            raise Overloaded(
                f"{self.cells} cells are waiting to be written, at most"
                f" {WRITE_QUEUE_CELLS_MAX} may; try again shortly"
            )
        # A call larger than the limit itself is taken when nothing else waits.
        if self._bytes and self._bytes + call.body_bytes > WRITE_QUEUE_BYTES_MAX:
            raise Overloaded(
                f"{self._bytes} bytes are waiting to be written, at most"
                f" {WRITE_QUEUE_BYTES_MAX} may; try again shortly"
            )
        self._calls.append(call)
        self.cells += len(call.cells)
        self._bytes += call.body_bytes

    def take_group(self, taken: list[PutAnswer]) -> None:
        """Takes the first calls out, as many as one group may have, and adds them to ``taken``."""
        cells = body_bytes = 0
        while self._calls:
            call = self._calls[0]
            if cells + len(call.cells) > GROUP_CELLS_MAX or (
                body_bytes and body_bytes + call.body_bytes > GROUP_BYTES_MAX
            ):
                break
            taken.append(call)
            self._left(self._calls.popleft())
            cells += len(call.cells)
            body_bytes += call.body_bytes

    def remove(self, call: PutAnswer) -> bool:
        """Whether it was still there."""
        if call not in self._calls:
            return False
        self._calls.remove(call)
        self._left(call)
        return True

    def recount(self) -> None:
        """After an error that may have come between a call and its count."""
        self.cells = sum(len(call.cells) for call in self._calls)
        self._bytes = sum(call.body_bytes for call in self._calls)

    def _left(self, call: PutAnswer) -> None:
        self.cells -= len(call.cells)
        self._bytes -= call.body_bytes
