"""The figures of one writer's groups: cells, waits, commits."""

from __future__ import annotations

import time

from cellfeed.store.tallies import CELLS, Tally


class WriterTally:
    """``cells``: of each group. ``commits``: how long its commit took, in seconds. ``waits``: how
    long the first call of it waited before, in seconds."""

    def __init__(self) -> None:
        self.cells, self.commits, self.waits = Tally(CELLS), Tally(), Tally()
        self._first_at_s = 0.0

    def arrived(self) -> None:
        """A call came into an empty queue. Under the writer's lock, as :meth:`taken`."""
        self._first_at_s = time.perf_counter()

    def taken(self) -> None:
        """A group was taken. The wait of the calls that it left begins at this moment: theirs is
        at least as long."""
        now_s = time.perf_counter()
        self.waits.add(now_s - self._first_at_s)
        self._first_at_s = now_s

    def committed(self, cells: int, seconds: float) -> None:
        """A group was committed."""
        self.cells.add(cells)
        self.commits.add(seconds)
