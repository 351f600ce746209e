"""Counts of values by size, for metrics: plain numbers, so that one costs a call and two additions.

Each has one thread that adds. Any other may read it meanwhile, at some moment, as one reads
counters. A package of clients alone has no library of metrics: servers make families of tallies.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Limits for durations, in seconds."""

CELLS: Final = (1.0, 10.0, 100.0, 1_000.0, 10_000.0)
"""Limits for numbers of cells."""


class Tally:
    """A histogram. ``limits``: upper ones, included, ascending."""

    __slots__ = ("_counts", "limits", "total")

    def __init__(self, limits: Sequence[float] = SECONDS) -> None:
        self.limits = limits
        self.total = 0.0
        """The sum of all values."""
        self._counts = [0] * (len(limits) + 1)

    def add(self, value: float) -> None:
        """Counts one value."""
        self._counts[bisect_left(self.limits, value)] += 1
        self.total += value

    def counts(self) -> list[int]:
        """How many values are at most each limit, and how many there are."""
        return list(accumulate(self._counts))
